"""Spans and moments as people write them: `90m`, `1h30m`, `7d`; `2026-12-24T18:00Z`."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from functools import lru_cache
from math import floor

from tpuctl.errors import UsageError
from tpuctl.lib.text import counted

_UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
LONGEST_S = 3652.0 * 86_400
"""Ten years: nothing here lasts longer, and sums with it are still times."""
_LEAST, _MOST = -30_610_224_000.0, 253_402_300_799.0
"""The years 1000 to 9999, which have four digits."""
_EPOCH = date(1970, 1, 1).toordinal()
_PART = re.compile(r"([0-9]+(?:[.][0-9]+)?)([wdhms])")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(word: str, flag: str) -> float:
    """Seconds of `90m`, `1h30m` or `7d`; more than 0, at most `LONGEST_S`. Raises UsageError naming `flag`."""
    text = word.strip().lower()
    if not _WHOLE.fullmatch(text):
        raise UsageError(f"{flag} {word!r} is not a duration", hint=f"{flag} 4h; also 90m, 1h30m, 7d")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    if seconds <= 0:
        raise UsageError(f"{flag} {word!r} must be more than 0", hint=f"{flag} 4h")
    if seconds > LONGEST_S:
        raise UsageError(f"{flag} {word!r} is more than ten years", hint=f"{flag} 4h")
    return seconds


def parse_moment(word: str, flag: str) -> float:
    """Seconds since the epoch of an ISO 8601 date or time; without an offset it is UTC. Raises UsageError."""
    try:
        found = datetime.fromisoformat(word.strip())
        at = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        hint = f"{flag} 2026-12-24T18:00Z; without an offset it is UTC"
        raise UsageError(f"{flag} {word!r} is not a time", hint=hint) from None
    if not _LEAST <= at <= _MOST:
        raise UsageError(f"{flag} {word!r} is too far away", hint=f"{flag} 2026-12-24T18:00Z")
    return at


def parse_until(word: str, flag: str, now: float) -> float:
    """`8h`, `30m`, `2d`, or a time such as 2026-11-30T08:00 (UTC if it names no zone), in epoch seconds.

    Raises UsageError naming `flag` for anything else, and for a time that is past.
    """
    try:
        at = now + parse_duration(word, flag)
    except UsageError:
        if _WHOLE.fullmatch(word.strip().lower()):
            raise
        try:
            at = parse_moment(word, flag)
        except UsageError as error:
            hint = f"{flag} 8h, or {flag} 2026-11-30T08:00"
            raise UsageError(f"{flag} {word!r} is neither a span nor a time", hint=hint) from error
    if at <= now:
        raise UsageError(f"{flag} {word} is in the past", hint=f"{flag} 8h")
    return at


def parse_timestamp(text: str) -> float | None:
    """Epoch seconds of a time as Google's APIs write it; None for what is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def _shown(seconds: float, least: float = -LONGEST_S * 1000, most: float = LONGEST_S * 1000) -> float:
    """A number that can be shown, for any: records of other versions and of damaged hosts have all kinds."""
    return min(max(seconds, least), most) if seconds == seconds else 0.0


def render_duration(seconds: float) -> str:
    """The shortest exact form: `4h`, `1h30m`, `45s`."""
    rest, parts = round(_shown(seconds)), []
    for unit, size in _UNITS.items():
        if unit != "w" and rest >= size:
            parts.append(f"{rest // size}{unit}")
            rest %= size
    return "".join(parts) or "0s"


def render_age(seconds: float) -> str:
    """A span for a narrow column, by its largest unit: `45s`, `12m`, `5h`, `3d`."""
    whole = max(0, int(_shown(seconds)))
    unit, size = next(
        ((unit, size) for unit, size in _UNITS.items() if unit != "w" and whole >= size), ("s", 1)
    )
    return f"{whole // size}{unit}"


def render_moment(at: float) -> str:
    """`2026-12-24T18:00:00Z`."""
    return f"{_second(floor(_shown_moment(at)))}Z"


def render_instant(at: float, *, whole: bool = False) -> str:
    """`12-24T18:00:00.2Z`: to a tenth of a second; with the year only if `whole`."""
    tenths = int(_shown_moment(at) * 10)
    return f"{_second(tenths // 10)}.{tenths % 10}Z"[0 if whole else 5 :]


def _shown_moment(at: float) -> float:
    return at if _LEAST <= at <= _MOST else _shown(at, _LEAST, _MOST)


def _second(at: int) -> str:
    """`2026-12-24T18:00:00`. Lists have thousands of moments and logs millions, and a `datetime` of each takes
    several times as long."""
    minutes, seconds = divmod(at, 60)
    days, minute = divmod(minutes, 1440)
    return f"{_day(days)}T{_minute(minute)}:{_minute(seconds)[3:]}"


@lru_cache(64)
def _day(number: int) -> str:
    return date.fromordinal(_EPOCH + number).isoformat()


@lru_cache(1440)
def _minute(number: int) -> str:
    return f"{number // 60:02}:{number % 60:02}"


def render_time(at: float | None) -> str | None:
    """`render_moment`, and None for none."""
    return None if at is None else render_moment(at)


def render_seconds(seconds: float) -> str:
    """`8 s`, `2 min 05 s`, `30 min`, `1 h 03 min`."""
    whole = max(0, round(_shown(seconds)))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if minutes else f"{hours} h"


def render_timer(seconds: float) -> str:
    """`0:08`, `2:05`, `1:03:00`."""
    minutes, rest = divmod(max(0, round(_shown(seconds))), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def render_span(seconds: float) -> str:
    """A duration for people: `45 s`, `7 min`, `3 h`, `2 days`."""
    seconds = _shown(seconds)
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if round(seconds) < limit:
            return f"{max(0, round(seconds / unit))} {name}"
    return counted(round(seconds / 86400), "day")


def render_clock(at: float) -> str:
    """Local time of day: `18:00:00`."""
    # A day from the edges, which are further away in some zone.
    return (
        datetime.fromtimestamp(_shown(at, _LEAST + 86_400, _MOST - 86_400), UTC)
        .astimezone()
        .strftime("%H:%M:%S")
    )


def draw_by_minute(now: float) -> int:
    """A number that is drawn anew each minute, the same for everybody. With it passes take turns: none needs to
    remember where the last one stopped, and no interval between passes leaves one out for ever."""
    import hashlib  # OpenSSL comes with it, which no help needs

    return int.from_bytes(hashlib.sha256(str(int(now / 60)).encode()).digest())
