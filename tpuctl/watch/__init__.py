"""The watchdog: one pass over everything that is wanted."""
