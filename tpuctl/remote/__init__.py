"""SSH to workers: connections, fan-out, files, pinned host keys."""
