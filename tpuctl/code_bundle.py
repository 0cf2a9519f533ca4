"""Freezes the code of a run into one reproducible archive."""
