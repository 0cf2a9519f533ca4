"""Kubernetes' own code, for tests of what tpuctl makes for clusters."""
