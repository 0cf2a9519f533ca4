"""`watch install --on` and `watch uninstall --on`: a watchdog on another machine."""

from __future__ import annotations

import hashlib

from tpuctl.cli.confirm import confirm
from tpuctl.cli.context import AppContext


def install_on(
    context: AppContext, login: str, every: int, ping: str | None, *, dry_run: bool, yes: bool
) -> None:
    """Sends this tpuctl to `login` and lets cron there make the passes."""
    from tpuctl.config.proxy import check_ping_url
    from tpuctl.model.shipped_files import read_template
    from tpuctl.watch.install.crontab import render_schedule
    from tpuctl.watch.install.login import run_script, send_file
    from tpuctl.watch.install.remote_script import check_login, remote_settings, render_remote
    from tpuctl.watch.install.wheel import build_wheel

    check_login(login)
    render_schedule(every)
    settings = remote_settings(context.config, None if ping is None else check_ping_url(ping))
    name, wheel = build_wheel()
    script = render_remote(
        read_template("watch_remote.sh").decode(),
        subject=_subject(context),
        environ=settings,
        wheel=name,
        digest=hashlib.sha256(wheel).hexdigest(),
        every_min=every,
    )
    console = context.console
    if dry_run:
        if console.json_mode:
            console.data({"dry_run": True, "on": login, "sends": name, "script": script})
            return
        console.line(
            f"{console.mark}would send {name} ({len(wheel) / 1024:.0f} KiB) to {login} and run:\n{script}"
        )
        return
    confirm(context, f"install tpuctl on {login} and let cron there make a pass every {every} min?", yes=yes)
    console.say(f"sending {name} to {login}; the install takes some minutes on a small machine")
    send_file(login, name, wheel)
    run_script(login, script, console.say)
    if console.json_mode:
        console.data({"on": login, "every_min": every, "changed": True})


def uninstall_on(context: AppContext, login: str, *, dry_run: bool) -> None:
    """Removes from `login` what `install_on` brought."""
    from tpuctl.model.shipped_files import read_template
    from tpuctl.watch.install.login import run_script
    from tpuctl.watch.install.remote_script import check_login, remote_settings, render_remote

    check_login(login)
    script = render_remote(
        read_template("watch_remote_remove.sh").decode(),
        subject=_subject(context),
        environ=remote_settings(context.config, None),
    )
    console = context.console
    if dry_run:
        console.line(f"{console.mark}would run on {login}:\n{script}")
        return
    run_script(login, script, console.say)
    if console.json_mode:
        console.data({"on": login, "removed": True})


def _subject(context: AppContext) -> str:
    return f"project {context.config.require_project()}"
