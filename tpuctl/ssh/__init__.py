"""The transport: commands on many hosts over SSH."""
