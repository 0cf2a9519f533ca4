"""When silence proves something: hosts that do not answer may be dead, or this machine may be cut off."""

from __future__ import annotations

from enum import StrEnum

from tpuctl.core import timeouts


class Silence(StrEnum):
    """What hosts that do not answer SSH amount to."""

    WAIT = "wait"
    """They may still be booting, or come back."""
    BLIND = "blind"
    """Nothing that this machine tried answered: it may be the one that is cut off, and decides nothing."""
    GIVE_UP = "give-up"
    """They had their time, and something else than this machine's own view speaks against them."""


def judge_silence(silent_s: float, *, reached_another: bool, unhealthy: bool) -> Silence:
    """What hosts amount to that have not answered for `silent_s` seconds.

    `reached_another`: in the same pass another host answered on the same port. `unhealthy`: the API itself says
    that the node is not well. Without either, being out of reach from one machine is no evidence.
    """
    evidence = reached_another or unhealthy
    if silent_s < timeouts.BOOT_GRACE_S:
        return Silence.WAIT
    if not evidence:
        return Silence.BLIND
    return Silence.GIVE_UP if silent_s >= timeouts.UNREACHABLE_MAX_S else Silence.WAIT
