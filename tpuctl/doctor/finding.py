"""What a check of `doctor` found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from http import HTTPStatus

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.errors import TpuctlError


class Level(StrEnum):
    """How bad it is: a problem keeps tpuctl from working, a warning may do so one day or was not checked."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(Struct, frozen=True):
    """One line of the report. `fix` is a command that mends it, None where there is nothing to do."""

    level: Level
    what: str
    fix: str | None = None
    check: str = ""
    """Who found it: the registry of checks writes its name in."""
    unread: str = ""
    """Why its facts could not be read; empty where they were."""


def ok(what: str) -> Finding:
    return Finding(Level.OK, what)


def warning(what: str, fix: str | None = None) -> Finding:
    return Finding(Level.WARNING, what, fix)


def problem(what: str, fix: str | None = None) -> Finding:
    return Finding(Level.PROBLEM, what, fix)


def not_checked(error: TpuctlError | None) -> Finding:
    """The facts of a check could not be read. That the credentials are refused is a finding of its own."""
    if error is not None and error.details.get("status") == HTTPStatus.UNAUTHORIZED:
        return _unread("the credentials are refused")
    why = "nothing is known" if error is None else error.message
    return _unread(why, error.hint if error else None)


def _unread(why: str, fix: str | None = None) -> Finding:
    return replace(warning(f"not checked: {why}", fix), unread=why)


def found_by(check: str, found: Iterable[Finding]) -> list[Finding]:
    """The findings of one check."""
    return [replace(each, check=check) for each in found]


def because(found: Sequence[Finding], why: str) -> list[Finding]:
    """The same findings, where what could not be read has one reason."""
    return [replace(_unread(why), check=each.check) if each.unread else each for each in found]


def fold_unread(found: Sequence[Finding]) -> list[Finding]:
    """For people: one line for all checks that were left out for the same reason, behind the rest."""
    alike: dict[tuple[str, str | None], list[str]] = {}
    for each in found:
        if each.unread:
            alike.setdefault((each.unread, each.fix), []).append(each.check)
    together = {cause: checks for cause, checks in alike.items() if len(checks) > 1}
    kept = [each for each in found if (each.unread, each.fix) not in together]
    lines = [
        replace(warning(f"{', '.join(dict.fromkeys(checks))}: {why}", fix), check="not checked")
        for (why, fix), checks in together.items()
    ]
    return [*kept, *lines]
