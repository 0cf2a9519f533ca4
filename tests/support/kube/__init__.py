"""A real Kubernetes for tests: its API server, JobSet and Kueue, and nodes that run pods as processes."""
