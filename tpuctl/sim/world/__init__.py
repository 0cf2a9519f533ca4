"""The model of the simulated cloud: its resources, and how they change."""
