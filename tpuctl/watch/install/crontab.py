"""A crontab as text: our marked line goes in and out, every other byte stays.

A line is ours when it ends with our marker, which names the state directory of one profile and project.
Format: crontab(5) of Debian's cron; `%` in a command would be a newline there.
"""

from __future__ import annotations

from tpuctl.errors import UsageError
from tpuctl.lib.shell import quote

MARK = "# tpuctl watch "
MAX_MINUTES = 60


def marker(state_dir: str) -> str:
    """What marks the line of the watchdog over `state_dir`."""
    _check_printable(state_dir)
    return f"{MARK}{state_dir}"


def render_schedule(every_min: int) -> str:
    """The five time fields. Raises UsageError outside of 1 to 60 minutes."""
    if not 1 <= every_min <= MAX_MINUTES:
        raise UsageError(f"--every {every_min}: cron can do 1 to {MAX_MINUTES} minutes", hint="--every 1")
    if every_min == 1:
        return "* * * * *"
    return "0 * * * *" if every_min == MAX_MINUTES else f"*/{every_min} * * * *"


def render_line(every_min: int, command: tuple[str, ...], state_dir: str) -> str:
    """Our line, without a newline. Raises UsageError for what a crontab cannot hold."""
    for word in command:
        _check_printable(word)
    words = " ".join(quote(word) for word in command)
    line = f"{words} {marker(state_dir)}"
    return f"{render_schedule(every_min)} {line.replace('%', chr(92) + '%')}"


def seconds_until_due(line: str, minute: int, second: int) -> int | None:
    """How long until cron calls `line` next, at so much of the hour by the machine's clock; None for a schedule
    that is not of `render_schedule`."""
    for every in range(1, MAX_MINUTES + 1):
        if line.startswith(f"{render_schedule(every)} "):
            following = next((each for each in range(minute + 1, 60) if each % every == 0), 60)
            return (following - minute) * 60 - second
    return None


def find_lines(crontab: str, state_dir: str) -> list[str]:
    """Our lines in a crontab; more than one only if somebody copied it."""
    return [line for line in crontab.split("\n") if _is_ours(line, state_dir)]


def put_line(crontab: str, line: str, state_dir: str) -> str:
    """`crontab` with our line in it exactly once: where it was, else at the end."""
    lines = crontab.split("\n")
    if line in lines and find_lines(crontab, state_dir) == [line]:
        return crontab
    places = [index for index, found in enumerate(lines) if _is_ours(found, state_dir)]
    if not places:
        glue = "" if crontab == "" or crontab.endswith("\n") else "\n"
        return f"{crontab}{glue}{line}\n"
    lines[places[0]] = line
    return "\n".join(found for index, found in enumerate(lines) if index not in places[1:])


def drop_line(crontab: str, state_dir: str) -> str:
    """`crontab` without our line; everything else byte for byte."""
    return "\n".join(line for line in crontab.split("\n") if not _is_ours(line, state_dir))


def _is_ours(line: str, state_dir: str) -> bool:
    if line.lstrip().startswith("#"):
        return False
    return line.endswith(" " + marker(state_dir).replace("%", "\\%"))


def _check_printable(word: str) -> None:
    if any(character in word for character in "\n\r\0"):
        raise UsageError(f"{word!r} holds a line break, which a crontab cannot", hint="use another directory")
