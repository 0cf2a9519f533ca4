"""The watchdog's heartbeat: what a pass reports, and what the heartbeats of a store prove.

Times are epoch seconds by the store's own clock, so that machines with wrong clocks agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from tpuctl.lib.time import render_span
from tpuctl.model import timeouts

FLEET = "fleet"
"""The subject of a pass that could not look at any slice."""
INSTALL_HINT = "tpuctl watch install"


class PassResult(StrEnum):
    """What a pass came to for one subject."""

    DONE = "done"
    WAITING = "waiting"
    BLOCKED = "blocked"
    BUSY = "busy"
    """Another process works on it."""
    BLIND = "blind"
    PAUSED = "paused"
    LATER = "later"
    """Its hosts are asked in another pass."""
    FAILED = "failed"


TROUBLED = frozenset({PassResult.BLOCKED, PassResult.BLIND, PassResult.FAILED})
"""Results that a person should hear of."""
UNTROUBLED = frozenset({PassResult.DONE, PassResult.WAITING})
"""Results that end a trouble; `busy` or `later` say nothing about it."""
MAX_TROUBLES = 50
"""Kept in one heartbeat, so that a fleet in flames does not make it large."""


class PassLine(Struct, frozen=True):
    """What one pass did for one subject, and why."""

    subject: str
    result: PassResult
    why: str
    acted: bool


class Trouble(Struct, frozen=True):
    """Something that passes could not mend. `passes` counts those that saw it in a row."""

    subject: str
    result: str
    why: str
    since: float
    passes: int = 1


class Watcher(Struct, frozen=True):
    """Who passes: a machine, and the interval that it was installed with (None: by hand)."""

    machine: str
    host: str
    user: str
    version: str
    interval_s: float | None = None


class Heartbeat(Struct, frozen=True):
    """The last pass of one machine over one store."""

    machine: str
    host: str
    user: str
    version: str
    at: float
    """When it began."""
    seconds: float
    interval_s: float | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    acted: int = 0
    troubles: tuple[Trouble, ...] = ()
    passes: int = 1
    note: str = ""
    """Trouble with the ping or a hook, in words."""

    @property
    def next_due(self) -> float | None:
        return None if self.interval_s is None else self.at + self.interval_s

    @property
    def overdue_after_s(self) -> float:
        """How long after its end another pass must have begun."""
        interval = timeouts.WATCH_INTERVAL_S if self.interval_s is None else self.interval_s
        return timeouts.WATCH_STALE_INTERVALS * interval


def next_heartbeat(
    previous: Heartbeat | None, watcher: Watcher, lines: Sequence[PassLine], *, at: float, seconds: float
) -> Heartbeat:
    """The heartbeat after one more pass. A pass by hand keeps the interval that was installed."""
    interval = watcher.interval_s
    if interval is None and previous is not None:
        interval = previous.interval_s
    return Heartbeat(
        machine=watcher.machine,
        host=watcher.host,
        user=watcher.user,
        version=watcher.version,
        at=at,
        seconds=round(seconds, 1),
        interval_s=interval,
        counts=dict(sorted(Counter(str(line.result) for line in lines).items())),
        acted=sum(line.acted for line in lines),
        troubles=_next_troubles(previous, lines, at),
        passes=1 if previous is None else previous.passes + 1,
    )


def _next_troubles(previous: Heartbeat | None, lines: Sequence[PassLine], at: float) -> tuple[Trouble, ...]:
    """A trouble lasts until its subject is settled or no longer looked at; who was skipped keeps it."""
    known = {trouble.subject: trouble for trouble in previous.troubles} if previous else {}
    found = []
    for line in lines:
        old = known.get(line.subject)
        if line.result in TROUBLED:
            if old is None or old.result != line.result:
                old = Trouble(line.subject, str(line.result), line.why, at, 0)
            found.append(replace(old, why=line.why, passes=old.passes + 1))
        elif old is not None and line.result not in UNTROUBLED:
            found.append(old)
    return tuple(found[:MAX_TROUBLES])


def is_new(trouble: Trouble) -> bool:
    """Whether this pass is the first to see it."""
    return trouble.passes == 1


def worth_writing(previous: Heartbeat | None, fresh: Heartbeat) -> bool:
    """Whether a store that holds `previous` should be given `fresh`: not for the same news within half an
    interval, so that a command in a loop does not hammer a bucket."""
    if previous is None:
        return True
    ignored = {"at": 0.0, "seconds": 0.0, "passes": 0}
    if replace(previous, **ignored) != replace(fresh, **ignored):
        return True
    return fresh.at - previous.at >= (fresh.interval_s or timeouts.WATCH_INTERVAL_S) / 2


class Verdict(StrEnum):
    """Whether a watchdog looks after a store."""

    GOOD = "good"
    STOPPED = "stopped"
    NEVER = "never"


class Health(Struct, frozen=True):
    """What the heartbeats of a store prove. `why` is a sentence; `last` the newest heartbeat."""

    verdict: Verdict
    why: str
    last: Heartbeat | None = None

    @property
    def good(self) -> bool:
        return self.verdict is Verdict.GOOD


def judge(heartbeats: Iterable[Heartbeat], now: float) -> Health:
    """Whether any machine has passed within three of its intervals. `now` is the store's time.

    Passes by hand count for as long as three default intervals: after that, nobody comes back.
    """
    known = sorted(heartbeats, key=lambda beat: beat.at, reverse=True)
    if not known:
        return Health(Verdict.NEVER, "no watchdog has made a pass yet")
    for beat in known:
        if not is_late(beat, now):
            due = "" if beat.interval_s is None else f", every {render_span(beat.interval_s)}"
            return Health(Verdict.GOOD, f"{beat.user} on {beat.host} makes passes{due}", beat)
    last = known[0]
    by_hand = " (by hand)" if last.interval_s is None else ""
    ago = render_span(now - last.at)
    return Health(
        Verdict.STOPPED, f"no watchdog has made a pass for {ago}; the last was {last.host}{by_hand}", last
    )


def is_late(beat: Heartbeat, now: float) -> bool:
    """Whether this machine's next pass is overdue by more than chance."""
    return now > beat.at + beat.seconds + beat.overdue_after_s


def render_counts(beat: Heartbeat) -> str:
    """What a pass did, in words: `3 done, 1 waiting, 1 changed`."""
    parts = [f"{count} {result}" for result, count in beat.counts.items()]
    if beat.acted:
        parts.append(f"{beat.acted} changed")
    return ", ".join(parts) or "nothing to do"
