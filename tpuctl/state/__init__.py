"""The store: records, leases, journal, blobs and logs."""
