"""Liveness of hosts, and what silence proves: they may be dead, or this machine may be cut off."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from msgspec import Struct

from tpuctl.model import timeouts


class Liveness(StrEnum):
    """What the heartbeats of hosts that do not answer say of them."""

    UNKNOWN = "unknown"
    """They have none, or were not read often enough yet."""
    MOVING = "moving"
    """They live; it is only that they do not answer this machine."""
    STILL = "still"
    """They had heartbeats, and these stand still."""


class Beat(Struct, frozen=True):
    """One worker's heartbeat as it was read last, `reads` times in a row with this `value`. `moved`: it had
    another one before."""

    worker: int
    value: str
    reads: int = 1
    moved: bool = False

    @property
    def liveness(self) -> Liveness:
        if self.reads >= timeouts.BEAT_STILL_READS:
            return Liveness.STILL
        return Liveness.MOVING if self.moved else Liveness.UNKNOWN


class Heartbeats(Struct, frozen=True):
    """What was read of the heartbeats of one incarnation, last at `read_at` by the store's clock. `recorded`
    is what the journal says of them."""

    incarnation: str
    read_at: float
    rows: tuple[Beat, ...] = ()
    recorded: Liveness = Liveness.UNKNOWN


def due(known: Heartbeats | None, now: float) -> bool:
    """Whether it is time to read again: reads that follow each other closely say nothing."""
    return known is None or abs(now - known.read_at) >= timeouts.BEAT_READ_GAP_S


def count_read(known: Heartbeats | None, incarnation: str, values: Mapping[int, str], now: float) -> Heartbeats:
    """`known` with one more read, of `values` by worker.

    Reads are counted, not hours: a clock that jumps makes one read look late, not a host dead. What was read
    long ago does not count any more, and a heartbeat that was withdrawn is not one that stands still.
    """
    fresh = known is None or known.incarnation != incarnation or now - known.read_at > timeouts.BEAT_FORGET_S
    before = {} if known is None or fresh else {beat.worker: beat for beat in known.rows}
    rows = tuple(_next_beat(before.get(worker), worker, value) for worker, value in sorted(values.items()))
    return Heartbeats(incarnation, now, rows, Liveness.UNKNOWN if known is None or fresh else known.recorded)


def _next_beat(before: Beat | None, worker: int, value: str) -> Beat:
    if before is None:
        return Beat(worker, value)
    if before.value != value:
        return Beat(worker, value, moved=True)
    return Beat(worker, value, before.reads + 1, before.moved)


def classify_heartbeats(heartbeats: Heartbeats, silent: Collection[int], *, others_answer: bool) -> Liveness:
    """What the heartbeats of the `silent` workers amount to.

    While other hosts answer this machine, one that beats does not speak for one that does not; while none does,
    a single one that beats shows that silence proves nothing here.
    """
    by_worker = {beat.worker: beat.liveness for beat in heartbeats.rows if beat.worker in silent}
    if not by_worker:
        return Liveness.UNKNOWN
    moving = [liveness for liveness in by_worker.values() if liveness is Liveness.MOVING]
    if len(moving) >= (len(silent) if others_answer else 1):
        return Liveness.MOVING
    return (
        Liveness.STILL
        if all(liveness is Liveness.STILL for liveness in by_worker.values())
        else Liveness.UNKNOWN
    )


class Silence(StrEnum):
    """What hosts that do not answer SSH amount to."""

    WAIT = "wait"
    """They may still be booting, or come back."""
    BLIND = "blind"
    """Nothing that this machine tried answered: it may be the one that is cut off, and decides nothing."""
    GIVE_UP = "give-up"
    """They had their time, and something else than this machine's own view speaks against them."""


def replacement_limit(usd_per_hour: float | None, *, writes_disks: bool, asked_s: float | None) -> float:
    """How long hosts of a live slice may be silent until it is given up: by what waiting costs, unless a person
    `asked` for another time. Where a host can write a disk it is never shortened: what it wrote may be lost."""
    limit = timeouts.UNREACHABLE_MAX_S
    if asked_s is not None:
        limit = asked_s
    elif usd_per_hour:
        dear = 3600.0 * timeouts.UNREACHABLE_USD / usd_per_hour
        limit = max(timeouts.UNREACHABLE_LEAST_S, min(limit, dear))
    return max(limit, timeouts.UNREACHABLE_MAX_S) if writes_disks else limit


def classify_silence(
    silent_s: float,
    *,
    reached_another: bool,
    unhealthy: bool,
    liveness: Liveness = Liveness.UNKNOWN,
    limit_s: float = timeouts.UNREACHABLE_MAX_S,
) -> Silence:
    """What hosts amount to that have not answered for `silent_s` seconds; they have `limit_s`.

    `reached_another`: in the same pass another host answered on the same port. `unhealthy`: the API itself says
    that the node is not well. `liveness`: what their own heartbeats say. Without any of these, being out of
    reach from one machine proves nothing; and hosts that show signs of life are left alone
    whatever else speaks.
    """
    if liveness is Liveness.MOVING:
        return Silence.BLIND
    proved = reached_another or unhealthy or liveness is Liveness.STILL
    if silent_s < timeouts.BOOT_GRACE_S:
        return Silence.WAIT
    if not proved:
        return Silence.BLIND
    return Silence.GIVE_UP if silent_s >= limit_s else Silence.WAIT
