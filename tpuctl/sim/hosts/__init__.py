"""Hosts of the simulated cloud, behind one interface."""
