"""When silence proves something: hosts that do not answer may be dead, or this machine may be cut off."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from msgspec import Struct

from tpuctl.model import timeouts


class Life(StrEnum):
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
    def life(self) -> Life:
        if self.reads >= timeouts.BEAT_STILL_READS:
            return Life.STILL
        return Life.MOVING if self.moved else Life.UNKNOWN


class Beats(Struct, frozen=True):
    """What was read of the heartbeats of one incarnation, last at `read_at` by the store's clock. `told` is
    what they were last taken for."""

    incarnation: str
    read_at: float
    rows: tuple[Beat, ...] = ()
    told: Life = Life.UNKNOWN


def due(known: Beats | None, now: float) -> bool:
    """Whether it is time to read again: reads that follow each other closely say nothing."""
    return known is None or abs(now - known.read_at) >= timeouts.BEAT_READ_GAP_S


def count_read(known: Beats | None, incarnation: str, values: Mapping[int, str], now: float) -> Beats:
    """`known` with one more read, of `values` by worker.

    Reads are counted, not hours: a clock that jumps makes one read look late, not a host dead. What was read
    long ago does not count any more, and a heartbeat that was withdrawn is not one that stands still.
    """
    fresh = known is None or known.incarnation != incarnation or now - known.read_at > timeouts.BEAT_FORGET_S
    before = {} if known is None or fresh else {beat.worker: beat for beat in known.rows}
    rows = tuple(_next_beat(before.get(worker), worker, value) for worker, value in sorted(values.items()))
    return Beats(incarnation, now, rows, Life.UNKNOWN if known is None or fresh else known.told)


def _next_beat(before: Beat | None, worker: int, value: str) -> Beat:
    if before is None:
        return Beat(worker, value)
    if before.value != value:
        return Beat(worker, value, moved=True)
    return Beat(worker, value, before.reads + 1, before.moved)


def judge_beats(beats: Beats, silent: Collection[int], *, others_answer: bool) -> Life:
    """What the heartbeats of the `silent` workers amount to.

    While other hosts answer this machine, one that beats does not speak for one that does not; while none does,
    a single one that beats shows that silence proves nothing here.
    """
    lives = {beat.worker: beat.life for beat in beats.rows if beat.worker in silent}
    if not lives:
        return Life.UNKNOWN
    moving = [life for life in lives.values() if life is Life.MOVING]
    if len(moving) >= (len(silent) if others_answer else 1):
        return Life.MOVING
    return Life.STILL if all(life is Life.STILL for life in lives.values()) else Life.UNKNOWN


class Silence(StrEnum):
    """What hosts that do not answer SSH amount to."""

    WAIT = "wait"
    """They may still be booting, or come back."""
    BLIND = "blind"
    """Nothing that this machine tried answered: it may be the one that is cut off, and decides nothing."""
    GIVE_UP = "give-up"
    """They had their time, and something else than this machine's own view speaks against them."""


def judge_silence(
    silent_s: float, *, reached_another: bool, unhealthy: bool, life: Life = Life.UNKNOWN
) -> Silence:
    """What hosts amount to that have not answered for `silent_s` seconds.

    `reached_another`: in the same pass another host answered on the same port. `unhealthy`: the API itself says
    that the node is not well. `life`: what their own heartbeats say. Without any of these, being out of reach
    from one machine is no evidence; and hosts that show signs of life are left alone whatever else speaks.
    """
    if life is Life.MOVING:
        return Silence.BLIND
    evidence = reached_another or unhealthy or life is Life.STILL
    if silent_s < timeouts.BOOT_GRACE_S:
        return Silence.WAIT
    if not evidence:
        return Silence.BLIND
    return Silence.GIVE_UP if silent_s >= timeouts.UNREACHABLE_MAX_S else Silence.WAIT
