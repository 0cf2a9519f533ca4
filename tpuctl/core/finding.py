"""What a check of `doctor` found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from http import HTTPStatus

from tpuctl.errors import TpuctlError


class Level(StrEnum):
    """How bad it is: a problem keeps tpuctl from working, a warning may do so one day or was not checked."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `fix` is a command that mends it, None where there is nothing to do."""

    check: str
    level: Level
    what: str
    fix: str | None = None
    unread: bool = False
    """Its facts could not be read."""


def ok(check: str, what: str) -> Finding:
    return Finding(check, Level.OK, what)


def warning(check: str, what: str, fix: str | None = None) -> Finding:
    return Finding(check, Level.WARNING, what, fix)


def problem(check: str, what: str, fix: str | None = None) -> Finding:
    return Finding(check, Level.PROBLEM, what, fix)


def not_checked(check: str, error: TpuctlError | None) -> Finding:
    """The facts of this check could not be read. That the credentials are refused is a finding of its own."""
    if error is not None and error.details.get("status") == HTTPStatus.UNAUTHORIZED:
        return replace(warning(check, "not checked: the credentials are refused"), unread=True)
    why = "nothing is known" if error is None else error.message
    return replace(warning(check, f"not checked: {why}", error.hint if error else None), unread=True)
