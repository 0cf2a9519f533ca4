"""What exists in the simulated cloud, and what becomes of it."""
