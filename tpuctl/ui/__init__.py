"""The fleet in a browser: a page on loopback, and the same page as files in a bucket."""
