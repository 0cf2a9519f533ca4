"""Data tables, pinned environments and example files that travel with the package."""
