"""What every planner answers: what to do next, and where that leaves the work."""

from __future__ import annotations

from msgspec import Struct

from tpuctl.errors import TpuctlError


class Done(Struct, frozen=True):
    """Desired and observed agree."""

    why: str = ""


class Wait(Struct, frozen=True):
    """Nothing to do now. `until` is when to look again at the latest, if known (epoch seconds)."""

    why: str
    until: float | None = None
    coming: bool = False
    """`why` names what is to come (`capacity`), not a state that passes (`node a-1 is CREATING`)."""
    progress: str = ""
    """How far it is, where that is known; unlike `why` it changes while the wait is the same."""


def wait_for(what: str, until: float | None = None) -> Wait:
    """A wait for something that is coming."""
    return Wait(what, until, coming=True)


def render_wait(why: str, *, coming: bool) -> str:
    """`waiting for capacity`, `waiting: node a-1 is CREATING`."""
    return f"waiting for {why}" if coming else f"waiting: {why}"


class Blocked(Struct, frozen=True):
    """Only a person can go on from here."""

    why: str
    hint: str | None = None


class Blind(Struct, frozen=True):
    """This machine may be cut off from the hosts, so it decides nothing; another one may know better."""

    why: str


class Failed(Struct, frozen=True):
    """The work ended without success."""

    error: TpuctlError


Verdict = Done | Wait | Blocked | Blind | Failed
