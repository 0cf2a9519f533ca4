"""Hosts that are processes of this machine."""
