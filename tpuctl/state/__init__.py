"""The store: records, leases, journal, blobs, logs and their garbage collection."""
