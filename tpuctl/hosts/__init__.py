"""The agent on the hosts, seen from here."""
