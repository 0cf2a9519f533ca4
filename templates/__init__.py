"""Files rendered onto hosts: the host-side helper and install scripts (POSIX sh, Python 3.8 stdlib)."""
