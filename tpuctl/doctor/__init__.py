"""Checks of the set-up."""
