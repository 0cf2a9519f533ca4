"""Durable decisions: documents with generations, append-only entries and blobs."""
