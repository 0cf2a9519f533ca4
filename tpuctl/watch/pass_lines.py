"""What a pass came to for one subject, also where it failed: the trouble of one is not that of the others.
Sweeps and runs on clusters are such subjects of which the lists of the cloud say nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from tpuctl.engine.reconcile import Outcome
from tpuctl.engine.services import Services
from tpuctl.errors import LeaseHeldError, StaleRecordError, TpuctlError
from tpuctl.model.records import RunRecord
from tpuctl.model.verdict import Blind, Blocked, Done, Failed
from tpuctl.runs.sweep_record import open_sweeps
from tpuctl.watch.heartbeat import PassLine, PassResult

_log = logging.getLogger(__name__)


def guarded(subject: str, work: Callable[[], PassLine]) -> PassLine:
    """The line of `work`, or one that says what went wrong with it."""
    try:
        return work()
    except (LeaseHeldError, StaleRecordError) as error:
        return PassLine(subject, PassResult.BUSY, error.message, acted=False)
    except TpuctlError as error:
        return PassLine(subject, PassResult.FAILED, error.message, acted=False)
    except Exception as error:  # noqa: BLE001 - a defect met on one subject must not leave the others unwatched
        _log.exception("a pass met a defect", extra={"subject": subject})
        why = f"a defect of tpuctl: {type(error).__name__}: {error}"
        return PassLine(subject, PassResult.FAILED, why, acted=False)


def that_say(lines: Iterable[PassLine]) -> list[PassLine]:
    """Those that have something to tell."""
    return [line for line in lines if line.why]


def guarded_lines(subject: str, work: Callable[[], list[PassLine]]) -> list[PassLine]:
    """As `guarded`, for several lines."""
    lines: list[PassLine] = []

    def collect() -> PassLine:
        lines.extend(work())
        return PassLine(subject, PassResult.DONE, "", acted=False)

    line = guarded(subject, collect)
    return lines if line.result is PassResult.DONE else [line]


def line_of(subject: str, outcome: Outcome, acted: bool) -> PassLine:
    """What one subject came to in its last step."""
    verdict = outcome.verdict
    if isinstance(verdict, Failed):
        return PassLine(subject, PassResult.FAILED, verdict.error.message, acted)
    results = {Done: PassResult.DONE, Blocked: PassResult.BLOCKED, Blind: PassResult.BLIND}
    return PassLine(subject, results.get(type(verdict), PassResult.WAITING), verdict.why, acted)


def advance_sweeps(services: Services) -> list[PassLine]:
    """One turn of each sweep that is not over: the next rows begin, and slices that no row needs go."""

    def work(group: str) -> PassLine:
        from tpuctl.runs.sweep import advance_sweep

        outcome = advance_sweep(services, group)
        return line_of(f"sweep {group}", outcome, outcome.acted)

    return [guarded(f"sweep {group}", partial(work, group)) for group in open_sweeps(services)]


def look_at_clusters(services: Services, runs: Iterable[RunRecord]) -> list[PassLine]:
    """A line for each of these runs, as a look at its cluster shows it: attempts, ends and output are written
    down, and nothing is changed there. JobSets need no watchdog, but they are removed days after their end, and
    pods before that."""
    return [guarded(run.id, partial(_look, services, run)) for run in runs if run.cluster is not None]


def _look(services: Services, run: RunRecord) -> PassLine:
    from tpuctl.kube.reconcile import look_again

    seen = look_again(services, run)
    acted = seen.state is not run.state
    if seen.state.final:
        return PassLine(run.id, PassResult.DONE, seen.reason, acted)
    return PassLine(run.id, PassResult.WAITING, seen.reason or str(seen.state), acted)
