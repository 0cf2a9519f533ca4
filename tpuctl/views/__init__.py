"""Read models of `ls` and `status`."""
