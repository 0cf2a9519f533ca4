"""Everything in the project: whose it is, and the one way to delete it."""
