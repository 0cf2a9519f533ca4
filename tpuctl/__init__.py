"""Cloud TPU slices, kept up through preemptions, with the same code on every worker."""

__version__ = "0.1.0"
