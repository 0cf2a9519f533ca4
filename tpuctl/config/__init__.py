"""Settings: files, profiles, environment and flags, each with its origin."""
