"""`watch`: passes over everything that is wanted, and who makes them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tpuctl import __version__
from tpuctl.cli.commands.watch.hooks import tell_about
from tpuctl.cli.commands.watch.install import say_what_is_installed
from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.hooks import hook_problems
from tpuctl.errors import PartialError, TpuctlError
from tpuctl.lib.options import Option
from tpuctl.lib.text import counted

if TYPE_CHECKING:
    from tpuctl.watch.cycle import PassReport
    from tpuctl.watch.heartbeat import Heartbeat, Trouble, Watcher
    from tpuctl.watch.log import PassLog

    CleanUp = Callable[[AppContext, PassLog], None]

COLUMNS = (Column("subject", "SUBJECT"), Column("result", "RESULT"), Column("why", "WHY", give=1))
WATCHDOGS = (
    Column("host", "MACHINE", give=2),
    Column("user", "USER", give=1),
    Column("every", "EVERY"),
    Column("last", "LAST PASS"),
    Column("next", "NEXT DUE"),
    Column("did", "DID", give=3),
)


def once(
    context: AppContext,
    every: Annotated[
        int | None, Option("Interval of the passes; `watch install` sets it.", metavar="MIN", minimum=1)
    ] = None,
    ping: Annotated[
        str | None, Option("Call this after a good pass, as a dead man's switch.", metavar="URL")
    ] = None,
) -> None:
    """Check every slice and run once, and do what is due.

    Without a terminal only what is new is printed, so that cron mails nothing while all is well. Ends with 3
    when something needs a person. A second pass at the same time on this machine does nothing.
    """
    from tpuctl.config.proxy import check_ping_url
    from tpuctl.lib.files import try_lock
    from tpuctl.watch.log import PassLog

    context.shared.unattended = True
    url = context.config.ping_url if ping is None else check_ping_url(ping)
    folder = watch_dir(context)
    with try_lock(folder / "pass.lock") as mine:
        if not mine:
            context.console.table([], COLUMNS, empty="another pass is running on this machine")
            return
        with context.interruptible("nothing is lost: the next `tpuctl watch once` goes on from here"):
            log = PassLog(folder / "watch.log")
            try:
                report = _logged_pass(context, log, None if every is None else every * 60.0, url)
                if report.good:
                    if context.config.prune_after_days:
                        _once_a_day(context, folder / "pruned", log, _prune, "store: not pruned")
                    stamp = folder / "logs-limited"
                    _once_a_day(context, stamp, log, _limit_logs, "logs: none removed")
            finally:
                log.close()
            context.emit.close()
            _print_report(context, report)


def _prune(context: AppContext, log: PassLog) -> None:
    from tpuctl.state.gc import prune_if_due

    removed = prune_if_due(context.store, context.config.prune_after_days * 86400.0)
    if removed is not None and (removed.blobs or removed.old.journals):
        log.write(_now(context), f"- store: pruned: {removed.words}")


def _limit_logs(context: AppContext, log: PassLog) -> None:
    from tpuctl.runs.log_limit import find_excess, remove_logs

    removed = remove_logs(context, find_excess(context, context.config.logs_limit_mib))
    if removed:
        log.write(_now(context), f"- logs: removed {removed}: setting logs_limit_mib")


def _once_a_day(context: AppContext, stamp: Path, log: PassLog, clean_up: CleanUp, failed: str) -> None:
    """After the pass and its heartbeat; the stamp saves asking the store in all other passes. An error goes to
    the log alone, as `failed`: nothing waits for a clean-up."""
    from tpuctl.model.timeouts import PRUNE_EVERY_S

    try:
        if not _is_younger(stamp, context.clock.now(), PRUNE_EVERY_S):
            stamp.touch(mode=0o600)
            clean_up(context, log)
    except (TpuctlError, OSError) as error:
        log.write(_now(context), f"- {failed}: {error}")


def _now(context: AppContext) -> str:
    from tpuctl.lib.time import render_moment

    return render_moment(context.clock.now())


def _is_younger(path: Path, now: float, age_s: float) -> bool:
    try:
        return 0 <= now - path.stat().st_mtime < age_s
    except FileNotFoundError:
        return False


def watch_dir(context: AppContext) -> Path:
    """Where the watchdog keeps its script, locks and log."""
    return context.config.state_dir / "watch"


def this_watcher(context: AppContext, interval_s: float | None) -> Watcher:
    from tpuctl.watch.heartbeat import Watcher

    return Watcher(context.machine, socket.gethostname(), context.user, __version__, interval_s)


def _logged_pass(context: AppContext, log: PassLog, interval_s: float | None, url: str | None) -> PassReport:
    """One pass with its heartbeat, and after that what may fail or hang: hooks, the ping and pages, whose
    trouble is noted in the heartbeat. The log gets a line in any case."""
    from tpuctl.cli.logging import mask
    from tpuctl.notify.send import ping
    from tpuctl.watch.cycle import save_heartbeat, watched_pass

    def write(text: str) -> None:
        log.write(_now(context), mask(text))

    try:
        report = watched_pass(context, this_watcher(context, interval_s), hook_problems(context))
        report = save_heartbeat(context, report)
        notes = tell_about(context, report.lines, report.beat.troubles, write)
        if url is not None and report.good:
            notes.append(ping(url))
        if context.config.publish is not None:
            notes.append(_publish(context, context.config.publish))
        note = "; ".join(filter(None, notes))
        save_heartbeat(context, report, note)
    except BaseException as error:
        write(f"no pass: {type(error).__name__}: {error}")
        raise
    _log_report(report, note, write)
    return report


def _publish(context: AppContext, place: str) -> str:
    """Brings published pages up to date; trouble in words: it fails no pass."""
    from tpuctl.model.timeouts import PUBLISH_MAX_S
    from tpuctl.watch.heartbeat import PassLine, PassResult
    from tpuctl.watch.pass_lines import guarded

    def work() -> PassLine:
        from tpuctl.ui.publish import PUBLIC, UNKNOWN, publish

        done = publish(context, place, deadline=context.clock.now() + PUBLISH_MAX_S)
        public = {True: PUBLIC, None: UNKNOWN}.get(done.public, "").format(place=place)
        later = f"left to the next pass: {counted(len(done.later), 'page')}" if done.later else ""
        why = "; ".join(filter(None, (public, later)))
        return PassLine("pages", PassResult.DONE, why, acted=bool(done.written))

    why = guarded("pages", work).why
    return f"publish: {why}" if why else ""


def _log_report(report: PassReport, note: str, write: Any) -> None:
    from tpuctl.watch.heartbeat import TROUBLED, render_counts

    write(f"pass {report.beat.passes}: {render_counts(report.beat)} ({report.beat.seconds:.1f} s)")
    for line in report.lines:
        if line.acted or line.result in TROUBLED:
            write(f"- {line.subject}: {line.result}: {line.why}")
    if note:
        write(f"- {note}")


def _print_report(context: AppContext, report: PassReport) -> None:
    """Everything to a person or a program; otherwise only what was not said before. Raises PartialError when
    something needs a person."""
    from tpuctl.lib.codec import to_data
    from tpuctl.watch.cycle import HOOKS
    from tpuctl.watch.heartbeat import FLEET, is_new

    console, troubles = context.console, report.troubles
    everything = console.json_mode or console.out.isatty()
    new = {trouble.subject for trouble in troubles if is_new(trouble)}
    if troubles and console.json_mode:
        count = f"{len(troubles)} of {len(report.lines)}"
        raise PartialError(f"{count} need a person", details={"lines": to_data(report.lines)})
    shown = [line for line in report.lines if everything or line.acted or line.subject in new]
    if everything or shown:
        console.table([to_data(line) for line in shown], COLUMNS, empty="nothing to do")
    if not troubles:
        return
    if not everything and not new:
        raise typer.Exit((report.error or PartialError("")).exit_code)
    if report.error is not None:
        raise report.error
    first = next((trouble for trouble in troubles if is_new(trouble)), troubles[0])
    hint = {FLEET: "tpuctl watch status", HOOKS: "tpuctl watch hooks"}.get(
        first.subject, f"tpuctl why {first.subject}"
    )
    raise PartialError(_trouble_line(first), hint=hint)


def _trouble_line(trouble: Trouble) -> str:
    """`big is blocked: …`; of the whole pass, `the pass failed: …`."""
    from tpuctl.watch.heartbeat import FLEET, PassResult

    subject = "the pass" if trouble.subject == FLEET else trouble.subject
    verb = "" if trouble.result == PassResult.FAILED else "is "
    return f"{subject} {verb}{trouble.result}: {trouble.why}"


def status(context: AppContext) -> None:
    """Show which machines make passes, and what needs a person.

    Ends with 1 when no pass came within three intervals.
    """
    from tpuctl.lib.codec import to_data
    from tpuctl.watch.cycle import list_heartbeats
    from tpuctl.watch.heartbeat import INSTALL_HINT, judge
    from tpuctl.watch.pause import paused_why

    beats, now = list_heartbeats(context), context.store.now()
    health, console, paused = judge(beats, now), context.console, paused_why(context)
    if console.json_mode:
        console.data(
            {
                "health": str(health.verdict),
                "why": health.why,
                "paused": paused,
                "log": str(watch_dir(context) / "watch.log"),
                "watchdogs": [{**to_data(beat), "next_due": beat.next_due} for beat in beats],
            }
        )
        if not health.good:
            raise typer.Exit(TpuctlError.exit_code)
        return
    console.table([_row(beat, now) for beat in beats], WATCHDOGS, empty="no watchdog has made a pass yet")
    say_what_is_installed(context)
    if paused:
        console.warn(f"{paused}; `tpuctl resume` lifts that")
    for beat in beats:
        _print_troubles(context, beat)
    if not health.good:
        from tpuctl.watch.install.installer import installed_watch

        here = installed_watch(context.config).installed
        raise TpuctlError(health.why, hint="tpuctl doctor" if here else INSTALL_HINT)


def _row(beat: Heartbeat, now: float) -> dict[str, Any]:
    from tpuctl.lib.time import render_span
    from tpuctl.watch.heartbeat import is_late, render_counts

    left = None if beat.next_due is None else beat.next_due - now
    due = "-" if left is None else f"in {render_span(left)}" if left >= 0 else f"{render_span(-left)} ago"
    return {
        "host": beat.host,
        "user": beat.user,
        "every": "by hand" if beat.interval_s is None else render_span(beat.interval_s),
        "last": f"{render_span(now - beat.at)} ago",
        "next": "stopped" if beat.interval_s is not None and is_late(beat, now) else due,
        "did": f"{render_counts(beat)} in {beat.seconds:.1f} s",
    }


def _print_troubles(context: AppContext, beat: Heartbeat) -> None:
    for trouble in beat.troubles:
        passes = counted(trouble.passes, "pass", "passes")
        context.console.caveat(f"{_trouble_line(trouble)} ({passes} on {beat.host})")
    if beat.note:
        context.console.warn(f"{beat.host}: {beat.note}")
    if beat.version != __version__:
        context.console.warn(
            f"{beat.host} runs tpuctl {beat.version}, this is {__version__}: install it again there"
        )
