#!/bin/sh
# One pass of tpuctl's watchdog over @SUBJECT@, for cron or systemd.
# Written by `tpuctl watch install`, removed by `tpuctl watch uninstall`. Holds no secrets.
@EXPORTS@
cd / || exit 1
exec @COMMAND@
