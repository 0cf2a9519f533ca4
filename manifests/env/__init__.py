"""Pinned environments."""
