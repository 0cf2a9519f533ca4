"""Persistent disks: made, attached, copied and removed."""
