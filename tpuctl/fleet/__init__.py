"""The fleet file."""
