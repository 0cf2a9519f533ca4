"""Checks of everything that must be in order."""
