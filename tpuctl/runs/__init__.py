"""The life of a run and its attempts."""
