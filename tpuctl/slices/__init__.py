"""The life of a slice."""
