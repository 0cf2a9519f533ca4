"""What every planner answers: what to do next, and where that leaves the work."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tpuctl.errors import TpuctlError


@dataclass(frozen=True)
class Done:
    """Desired and observed agree."""

    why: str = ""


@dataclass(frozen=True)
class Wait:
    """Nothing to do now. `until` is when to look again at the latest, if known (epoch seconds)."""

    why: str
    until: float | None = None


_FINITE = re.compile(r":|\b(is|are|was|were|has|have|does|do|did|failed|could|cannot|will)\b")
"""Tells a sentence about a state (`node a-1 is CREATING`) from the name of a thing to come (`capacity`)."""


def waiting_words(why: str) -> str:
    """`waiting for capacity`, `waiting: node a-1 is CREATING`."""
    return f"waiting: {why}" if _FINITE.search(why.partition(" (")[0]) else f"waiting for {why}"


@dataclass(frozen=True)
class Blocked:
    """Only a person can go on from here."""

    why: str
    hint: str | None = None


@dataclass(frozen=True)
class Blind:
    """This machine may be cut off from the hosts, so it decides nothing; another one may know better."""

    why: str


@dataclass(frozen=True)
class Failed:
    """The work ended without success."""

    error: TpuctlError


Verdict = Done | Wait | Blocked | Blind | Failed
