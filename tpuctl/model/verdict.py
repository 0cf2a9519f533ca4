"""What every planner answers: what to do next, and where that leaves the work."""

from __future__ import annotations

import re

from msgspec import Struct

from tpuctl.errors import TpuctlError


class Done(Struct, frozen=True):
    """Desired and observed agree."""

    why: str = ""


class Wait(Struct, frozen=True):
    """Nothing to do now. `until` is when to look again at the latest, if known (epoch seconds)."""

    why: str
    until: float | None = None


_FINITE = re.compile(r":|\b(is|are|was|were|has|have|does|do|did|failed|could|cannot|will)\b")
"""Tells a sentence about a state (`node a-1 is CREATING`) from the name of a thing to come (`capacity`)."""


def waiting_words(why: str) -> str:
    """`waiting for capacity`, `waiting: node a-1 is CREATING`."""
    return f"waiting: {why}" if _FINITE.search(why.partition(" (")[0]) else f"waiting for {why}"


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
