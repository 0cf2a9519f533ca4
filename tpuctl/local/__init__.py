"""This machine: its crontab and user timers, locks between passes, alarms and hooks."""
