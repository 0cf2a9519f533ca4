"""`watch install` and `watch uninstall`: passes from cron or a systemd user timer."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.cli.confirm import confirm
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun, Yes
from tpuctl.errors import UsageError
from tpuctl.lib.options import Option

if TYPE_CHECKING:
    from tpuctl.watch.install.installer import Installation

On = Annotated[
    str | None, Option("On that machine, by your own ssh; needs a shared store.", metavar="USER@HOST")
]
Systemd = Annotated[bool, Option("A systemd user timer instead of cron.")]


def install(
    context: AppContext,
    every: Annotated[int, Option("Minutes between passes.", metavar="MIN", minimum=1, maximum=60)] = 1,
    systemd: Systemd = False,
    ping: Annotated[
        str | None, Option("Call this after each good pass, as a dead man's switch.", metavar="URL")
    ] = None,
    publish: Annotated[
        str | None, Option("Passes write the pages of `tpuctl ui` there.", metavar="gs://BUCKET/PREFIX")
    ] = None,
    on: On = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Install the watchdog: cron starts a pass once a minute.

    Shows what it writes and asks. The same command again changes nothing; another --every replaces it.
    """
    if on is not None and systemd:
        raise UsageError("--on and --systemd exclude each other", hint="keep --on; it uses cron there")
    from tpuctl.slices.enrollment import enroll_machine

    given = _variables(ping, publish)
    if on is not None:
        install_on(context, on, every, given, dry_run=dry_run, yes=yes)
        return
    from tpuctl.watch.install.installer import plan_install

    plan = plan_install(context.config, every, systemd=systemd, given=given)
    warnings = _warnings(context, systemd=systemd)
    there = plan.is_installed()
    _show(context, plan, warnings, dry_run=dry_run, there=there)
    if dry_run:
        return
    if not there:
        confirm(context, f"install this for profile {context.config.profile}?", yes=yes)
    enroll_machine(context)
    changed = plan.install()
    context.console.say(
        f"a pass every {every} min from now on; `tpuctl watch status` shows them"
        if changed
        else "nothing to change"
    )
    if context.console.json_mode:
        context.console.data({**_facts(plan, warnings), "changed": changed})


def _variables(ping: str | None, publish: str | None) -> dict[str, str]:
    """What was asked of passes, as their settings. Raises UsageError."""
    from tpuctl.config.proxy import check_ping_url
    from tpuctl.lib.names import check_page_uri

    said = {
        "TPUCTL_PING_URL": None if ping is None else check_ping_url(ping),
        "TPUCTL_PUBLISH": None if publish is None else check_page_uri(publish),
    }
    return {name: value for name, value in said.items() if value is not None}


def uninstall(context: AppContext, on: On = None, dry_run: DryRun = False) -> None:
    """Remove what `watch install` wrote, and nothing else.

    Slices and runs stay as they are.
    """
    from tpuctl.watch.cycle import forget_heartbeat
    from tpuctl.watch.install.installer import installers
    from tpuctl.watch.install.installer import uninstall as uninstall_all

    if on is not None:
        uninstall_on(context, on, dry_run=dry_run)
        return
    found = [item for each in installers(context.config) for item in each.found()]
    if not dry_run:
        uninstall_all(context.config)
        if found:
            forget_heartbeat(context, context.machine)
    word = "would remove" if dry_run else "removed"
    for item in found:
        context.console.say(f"{word}: {item}")
    if not found:
        context.console.say("no watchdog is installed here")
    if context.console.json_mode:
        context.console.data({"removed": found, "dry_run": dry_run})


def _warnings(context: AppContext, *, systemd: bool) -> list[str]:
    from tpuctl.watch.cycle import secrets_of_active_runs, slices_without_our_key
    from tpuctl.watch.install.preflight import run_preflight
    from tpuctl.watch.install.script import list_warnings

    config = context.config
    preflight = run_preflight(os.environ, Path.home(), config.user, config.token_file)
    secrets = secrets_of_active_runs(context)
    found = list_warnings(preflight, config, systemd=systemd, environ=os.environ, secrets=secrets)
    strangers = slices_without_our_key(context)
    if strangers:
        found.append(
            f"the hosts of {', '.join(strangers)} do not know this machine's key yet: the first passes send "
            "it, and it takes minutes to arrive"
        )
    return found


def _show(context: AppContext, plan: Installation, warnings: list[str], *, dry_run: bool, there: bool) -> None:
    console = context.console
    if console.json_mode:
        if dry_run:
            console.data({**_facts(plan, warnings), "dry_run": True})
        return
    if dry_run or not there:
        for where, text in plan.texts().items():
            (console.line if dry_run else console.verbatim)(f"{where}\n{text}")
    for warning in warnings:
        console.warn(warning)


def _facts(plan: Installation, warnings: list[str]) -> dict[str, Any]:
    from tpuctl.watch.install.installer import Cron, UserTimer

    return {
        "kind": plan.by.kind,
        "line": plan.by.line if isinstance(plan.by, Cron) else None,
        "unit": f"{plan.by.name}.timer" if isinstance(plan.by, UserTimer) else None,
        "script": str(plan.path),
        "warnings": warnings,
    }


def say_what_is_installed(context: AppContext) -> None:
    """Which line or timer calls passes on this machine and when next, and that no daemon does."""
    from tpuctl.lib.time import render_span
    from tpuctl.watch.install.crontab import seconds_until_due
    from tpuctl.watch.install.installer import installed_watch, installers

    found, console = installed_watch(context.config), context.console
    lines = installers(context.config)[0].found()
    now = time.localtime(context.clock.now())
    for line in lines:
        left = seconds_until_due(line, now.tm_min, now.tm_sec)
        due = "" if left is None or found.cron_runs is False else f", next due in {render_span(left)}"
        console.say(f"installed on this machine{due}: crontab line {' '.join(line.split()[:5])}")
    if found.timer:
        console.say("installed on this machine: a timer of systemd")
    if lines and found.cron_runs is False:
        console.warn(
            "no cron daemon runs on this machine, so that nothing calls it: start one, or "
            "`tpuctl watch install --systemd`"
        )


def install_on(
    context: AppContext, login: str, every: int, given: Mapping[str, str], *, dry_run: bool, yes: bool
) -> None:
    """Sends this tpuctl to `login` and lets cron there make the passes."""
    from tpuctl.model.shipped_files import read_template
    from tpuctl.watch.install.crontab import render_schedule
    from tpuctl.watch.install.remote import build_wheel, run_script, send_file
    from tpuctl.watch.install.script import check_login, remote_settings, render_remote

    check_login(login)
    render_schedule(every)
    settings = remote_settings(context.config, given)
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
    from tpuctl.watch.install.remote import run_script
    from tpuctl.watch.install.script import check_login, remote_settings, render_remote

    check_login(login)
    script = render_remote(
        read_template("watch_remote_remove.sh").decode(),
        subject=_subject(context),
        environ=remote_settings(context.config, {}),
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
