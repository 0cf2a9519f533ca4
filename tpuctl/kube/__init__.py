"""Runs on clusters of Kubernetes: the same run as a JobSet, as GKE's node pools with TPUs want it."""
