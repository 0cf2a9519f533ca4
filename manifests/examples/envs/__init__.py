"""Examples of environment files."""
