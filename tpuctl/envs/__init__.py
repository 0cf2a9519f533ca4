"""Environments of programs on hosts."""
