"""Adapters over the Google Cloud APIs; no other package speaks them."""
