"""The loop in the foreground: step, look, wait, until done, blocked or out of time."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from tpuctl.engine.events import Pace, Waiting
from tpuctl.engine.services import Services
from tpuctl.errors import (
    LeaseHeldError,
    PendingError,
    RateLimitedError,
    StaleRecordError,
    TpuctlError,
    TransientError,
)
from tpuctl.model import timeouts
from tpuctl.model.verdict import Blocked, Done, Failed, Verdict, Wait, render_wait


class Outcome(Struct, frozen=True):
    """What one pass over one subject came to. `acted` means something was changed: look again at once.
    `error`: the passing trouble that kept it from looking. `changed`: something was changed, but looking again
    at once would show nothing new."""

    verdict: Verdict
    acted: bool
    error: TpuctlError | None = None
    changed: bool = False


def converge(
    services: Services,
    subject: str,
    step: Callable[[], Outcome],
    *,
    deadline: float | None = None,
    pace: Callable[[], Pace | None] = lambda: None,
) -> None:
    """Repeats `step` until its verdict is Done. `pace` says how long what is waited for took before.

    Raises what Failed carries, TpuctlError for Blocked, PendingError once `deadline` (epoch seconds) passed.
    """
    clock = services.clock
    since, pause, last_why = clock.now(), timeouts.POLL_FIRST_S, ""
    while True:
        outcome = _attempt(step)
        verdict = outcome.verdict
        if isinstance(verdict, Done) and not outcome.acted:
            return
        if isinstance(verdict, Failed):
            raise verdict.error
        if isinstance(verdict, Blocked) and not outcome.acted:
            raise TpuctlError(f"{subject}: {verdict.why}", hint=verdict.hint)
        if outcome.acted:
            pause, last_why = timeouts.POLL_FIRST_S, ""
            continue
        why = verdict.why
        if why != last_why:
            since, last_why = clock.now(), why
        wait = verdict if isinstance(verdict, Wait) else Wait(why)
        services.emit(Waiting(subject, why, since, wait.until, pace(), wait.coming, wait.progress))
        _check_deadline(subject, wait, clock.now(), deadline, outcome.error)
        clock.sleep(pause)
        pause = min(timeouts.POLL_MAX_S, pause * timeouts.POLL_FACTOR)


def _attempt(step: Callable[[], Outcome]) -> Outcome:
    """One step, repeated after a lost race with another writer or a transient error of any call: a wait of
    hours meets some, and each step begins with an observation."""
    try:
        return step()
    except (LeaseHeldError, StaleRecordError, TransientError, RateLimitedError) as error:
        return Outcome(Wait(error.message), acted=False, error=error)


def _check_deadline(
    subject: str, wait: Wait, now: float, deadline: float | None, error: TpuctlError | None
) -> None:
    if deadline is not None and now >= deadline:
        raise PendingError(
            f"{subject}: out of time while {render_wait(wait.why, coming=wait.coming)}",
            hint="what was asked for goes on with the same command, or with a pass of the watchdog",
            details=error.details if error is not None else None,
        )
