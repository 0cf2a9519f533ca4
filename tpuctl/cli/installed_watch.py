"""What `watch install` left on this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.cli.context import AppContext

if TYPE_CHECKING:
    from tpuctl.model.facts import WatchFacts


def installed_watch(context: AppContext) -> WatchFacts:
    """What `install` left on this machine, for `doctor`."""
    from tpuctl.model.facts import WatchFacts
    from tpuctl.watch.install.preflight import cron_runs
    from tpuctl.watch.install.script import unit_name
    from tpuctl.watch.install.systemd import timer_exists, units_dir

    config = context.config
    name = unit_name(config.profile, config.require_project())
    return WatchFacts(
        installed=(config.state_dir / "watch" / "pass.sh").is_file(),
        in_crontab=bool(installed_lines(str(config.state_dir))),
        timer=timer_exists(units_dir(os.environ, Path.home()), name),
        cron_runs=cron_runs(),
    )


def installed_lines(state_dir: str) -> list[str]:
    from tpuctl.watch.install.cron import read_crontab
    from tpuctl.watch.install.crontab import find_lines

    if shutil.which("crontab") is None:
        return []
    return find_lines(read_crontab(), state_dir)
