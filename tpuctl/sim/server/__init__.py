"""The simulator's processes, and steering them from outside."""
