"""What a pass came to for one subject, also where it failed: the trouble of one is not that of the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from tpuctl.engine.reconcile import Outcome
from tpuctl.errors import LeaseHeldError, StaleRecordError, TpuctlError
from tpuctl.model.verdict import Blind, Blocked, Done, Failed
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
