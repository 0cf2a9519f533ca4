"""What a domain asks of the world (ports), and the reconcile loop."""
