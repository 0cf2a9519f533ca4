"""Telemetry: what chips and hosts tell of themselves while programs run."""
