"""Hosts and the `Remote` port in memory, by a clock that tests move."""
