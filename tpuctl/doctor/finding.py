"""What a check of `doctor` found."""

from __future__ import annotations

from collections.abc import Sequence
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

    check: str
    level: Level
    what: str
    fix: str | None = None
    unread: str = ""
    """Why its facts could not be read; empty where they were."""


def ok(check: str, what: str) -> Finding:
    return Finding(check, Level.OK, what)


def warning(check: str, what: str, fix: str | None = None) -> Finding:
    return Finding(check, Level.WARNING, what, fix)


def problem(check: str, what: str, fix: str | None = None) -> Finding:
    return Finding(check, Level.PROBLEM, what, fix)


def not_checked(check: str, error: TpuctlError | None) -> Finding:
    """The facts of this check could not be read. That the credentials are refused is a finding of its own."""
    if error is not None and error.details.get("status") == HTTPStatus.UNAUTHORIZED:
        return _unread(check, "the credentials are refused")
    why = "nothing is known" if error is None else error.message
    return _unread(check, why, error.hint if error else None)


def _unread(check: str, why: str, fix: str | None = None) -> Finding:
    return replace(warning(check, f"not checked: {why}", fix), unread=why)


def because(found: Sequence[Finding], why: str) -> list[Finding]:
    """The same findings, where what could not be read has one reason."""
    return [_unread(each.check, why) if each.unread else each for each in found]


def fold_unread(found: Sequence[Finding]) -> list[Finding]:
    """For people: what was not checked for one reason in one line, behind the rest."""
    alike: dict[tuple[str, str | None], list[str]] = {}
    for each in found:
        if each.unread:
            alike.setdefault((each.unread, each.fix), []).append(each.check)
    together = {cause: checks for cause, checks in alike.items() if len(checks) > 1}
    kept = [each for each in found if (each.unread, each.fix) not in together]
    lines = [
        warning("not checked", f"{', '.join(dict.fromkeys(checks))}: {why}", fix)
        for (why, fix), checks in together.items()
    ]
    return [*kept, *lines]
