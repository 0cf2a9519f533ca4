"""Before a run costs chips: whether its step fits a slice, and whether its weights are sane."""
