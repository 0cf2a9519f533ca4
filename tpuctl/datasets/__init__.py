"""Folders of many small files as tar shards in a bucket."""
