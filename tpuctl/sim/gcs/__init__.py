"""Cloud Storage."""
