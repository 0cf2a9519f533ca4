"""Having a machine run the watchdog: cron, systemd, another machine."""
