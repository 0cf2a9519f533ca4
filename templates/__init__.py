"""Files for hosts: install scripts, units, the demo's training program (POSIX sh, Python 3.8 stdlib)."""
