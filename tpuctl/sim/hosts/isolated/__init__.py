"""Hosts with namespaces, a file system and an sshd of their own."""
