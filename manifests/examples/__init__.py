"""Fleet files to begin with."""
