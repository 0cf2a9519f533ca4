"""Everything about a run that its hosts and this machine have, in one file."""
