"""Container images: what a run may name, and what that asks of its hosts."""
