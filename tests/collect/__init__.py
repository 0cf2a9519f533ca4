"""What is collected of a run."""
