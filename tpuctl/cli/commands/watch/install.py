"""`watch install` and `watch uninstall`: passes from cron or a systemd user timer."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct

from tpuctl.cli.commands.watch.remote import install_on, uninstall_on
from tpuctl.cli.confirm import confirm
from tpuctl.cli.context import AppContext, open_context
from tpuctl.cli.installed_watch import installed_lines, installed_watch
from tpuctl.cli.options import DryRun, Json, Yes
from tpuctl.errors import UsageError

On = Annotated[
    str | None,
    typer.Option("--on", metavar="USER@HOST", help="On that machine, by your own ssh; needs a shared store."),
]
Systemd = Annotated[bool, typer.Option("--systemd", help="A systemd user timer instead of cron.")]


class _Plan(Struct, frozen=True):
    """All that an install would write. `units` is None for cron."""

    script: str
    script_path: Path
    line: str
    units: dict[str, str] | None
    unit: str
    units_dir: Path


def install(
    ctx: typer.Context,
    every: Annotated[int, typer.Option(metavar="MIN", min=1, max=60, help="Minutes between passes.")] = 1,
    systemd: Systemd = False,
    ping: Annotated[
        str | None, typer.Option(metavar="URL", help="Call this after each good pass, as a dead man's switch.")
    ] = None,
    on: On = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Install the watchdog: cron starts a pass once a minute.

    Shows what it writes and asks. The same command again changes nothing; another --every replaces it.
    """
    if on is not None and systemd:
        raise UsageError("--on and --systemd exclude each other", hint="keep --on; it uses cron there")
    from tpuctl.slices.enrollment import enroll_machine

    with open_context(ctx) as context:
        if on is not None:
            install_on(context, on, every, ping, dry_run=dry_run, yes=yes)
            return
        plan = _plan(context, every, systemd=systemd, ping=ping)
        warnings = _warnings(context, systemd=systemd)
        there = _is_installed(plan)
        _show(context, plan, warnings, dry_run=dry_run, there=there)
        if dry_run:
            return
        if not there:
            confirm(context, f"install this for profile {context.config.profile}?", yes=yes)
        enroll_machine(context)
        changed = _write(plan)
        context.console.say(
            f"a pass every {every} min from now on; `tpuctl watch status` shows them"
            if changed
            else "nothing to change"
        )
        if context.console.json_mode:
            context.console.data({**_facts(plan, warnings), "changed": changed})


def uninstall(
    ctx: typer.Context,
    on: On = None,
    dry_run: DryRun = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Remove what `watch install` wrote, and nothing else.

    Slices and runs stay as they are.
    """
    from tpuctl.watch.cycle import forget_heartbeat
    from tpuctl.watch.install.script import unit_name
    from tpuctl.watch.install.systemd import timer_exists, units_dir

    with open_context(ctx) as context:
        if on is not None:
            uninstall_on(context, on, dry_run=dry_run)
            return
        state_dir = context.config.state_dir
        name = unit_name(context.config.profile, context.config.require_project())
        folder = units_dir(os.environ, Path.home())
        lines = installed_lines(str(state_dir))
        found = [*lines, *([str(folder / f"{name}.timer")] if timer_exists(folder, name) else [])]
        if not dry_run:
            _remove(state_dir, folder, name)
            if found:
                forget_heartbeat(context, context.machine)
        word = "would remove" if dry_run else "removed"
        for item in found:
            context.console.say(f"{word}: {item}")
        if not found:
            context.console.say("no watchdog is installed here")
        if context.console.json_mode:
            context.console.data({"removed": found, "dry_run": dry_run})


def _plan(context: AppContext, every: int, *, systemd: bool, ping: str | None) -> _Plan:
    from tpuctl.config.proxy import check_ping_url
    from tpuctl.model.shipped_files import read_template
    from tpuctl.watch.install.crontab import render_line
    from tpuctl.watch.install.script import pick_environment, render_script, render_unit, unit_name
    from tpuctl.watch.install.systemd import units_dir

    config = context.config
    folder = config.state_dir / "watch"
    environ = pick_environment(os.environ, config, str(Path.cwd()))
    if ping is not None:
        environ["TPUCTL_PING_URL"] = check_ping_url(ping)
    subject = f"profile {config.profile}, project {config.require_project()}"
    script = render_script(
        read_template("watch_pass.sh").decode(),
        subject=subject,
        environ=environ,
        program=[sys.executable, "-P", "-m", "tpuctl", "watch", "once", "--every", str(every)],
        timeout=shutil.which("timeout"),
    )
    script_path = folder / "pass.sh"
    unit = unit_name(config.profile, config.require_project())
    units = None
    if systemd:
        units = {
            suffix: render_unit(
                read_template(f"tpuctl-watch.{suffix}").decode(),
                subject=subject,
                script=str(script_path),
                every_min=every,
            )
            for suffix in ("service", "timer")
        }
    flock = shutil.which("flock")
    guard = (flock, "-n", "-o", str(folder / "cron.lock")) if flock else ()
    line = render_line(every, (*guard, "/bin/sh", str(script_path)), str(config.state_dir))
    return _Plan(script, script_path, line, units, unit, units_dir(os.environ, Path.home()))


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


def _show(context: AppContext, plan: _Plan, warnings: list[str], *, dry_run: bool, there: bool) -> None:
    console = context.console
    if console.json_mode:
        if dry_run:
            console.data({**_facts(plan, warnings), "dry_run": True})
        return
    if dry_run or not there:
        for where, text in _texts(plan).items():
            (console.line if dry_run else console.verbatim)(f"{where}\n{text}")
    for warning in warnings:
        console.warn(warning)


def _texts(plan: _Plan) -> dict[str, str]:
    """All that is written, by where it goes."""
    if plan.units is None:
        found = {"crontab line:": plan.line}
    else:
        found = {f"{plan.units_dir / plan.unit}.{suffix}:": text for suffix, text in plan.units.items()}
    return {**found, f"{plan.script_path}:": plan.script}


def _facts(plan: _Plan, warnings: list[str]) -> dict[str, Any]:
    return {
        "kind": "cron" if plan.units is None else "systemd",
        "line": plan.line if plan.units is None else None,
        "unit": None if plan.units is None else f"{plan.unit}.timer",
        "script": str(plan.script_path),
        "warnings": warnings,
    }


def _is_installed(plan: _Plan) -> bool:
    same_script = plan.script_path.is_file() and plan.script_path.read_text() == plan.script
    if plan.units is not None:
        return same_script and (plan.units_dir / f"{plan.unit}.timer").exists()
    return same_script and plan.line in installed_lines(str(plan.script_path.parent.parent))


def say_what_is_installed(context: AppContext) -> None:
    """Which line or timer calls passes on this machine and when next, and that no daemon does."""
    from tpuctl.lib.time import render_span
    from tpuctl.watch.install.crontab import seconds_until_due

    found, lines, console = (
        installed_watch(context),
        installed_lines(str(context.config.state_dir)),
        context.console,
    )
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


def _write(plan: _Plan) -> bool:
    """The script first: a line must not call what is not there. One kind replaces the other."""
    from tpuctl.lib.files import write_private
    from tpuctl.watch.install.cron import edit_crontab
    from tpuctl.watch.install.crontab import drop_line, put_line
    from tpuctl.watch.install.systemd import check_available, install_timer, remove_timer

    state_dir = str(plan.script_path.parent.parent)
    if plan.units is not None:
        check_available()
    changed = not plan.script_path.is_file() or plan.script_path.read_text() != plan.script
    if changed:
        write_private(plan.script_path, plan.script.encode())
    if plan.units is None:
        changed |= edit_crontab(lambda text: put_line(text, plan.line, state_dir), _crontab_lock())
        remove_timer(plan.units_dir, plan.unit)
        return changed
    units = plan.units
    changed |= install_timer(plan.units_dir, plan.unit, units["service"], units["timer"])
    if installed_lines(state_dir):
        edit_crontab(lambda text: drop_line(text, state_dir), _crontab_lock())
    return changed


def _remove(state_dir: Path, units_dir: Path, unit: str) -> None:
    from tpuctl.watch.install.cron import edit_crontab
    from tpuctl.watch.install.crontab import drop_line
    from tpuctl.watch.install.systemd import remove_timer

    if installed_lines(str(state_dir)):
        edit_crontab(lambda text: drop_line(text, str(state_dir)), _crontab_lock())
    remove_timer(units_dir, unit)
    (state_dir / "watch" / "pass.sh").unlink(missing_ok=True)


def _crontab_lock() -> Path:
    """One for all profiles, projects and state directories of this user, as there is one crontab."""
    from tpuctl.config.load import find_state_base

    return find_state_base({}, Path.home()) / "crontab.lock"
