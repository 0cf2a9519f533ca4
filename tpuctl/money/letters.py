"""Grants in letters of TPU Research Cloud: lines such as `64 spot Cloud TPU v6e chips in zone us-east1-d`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date, timedelta

from msgspec import Struct

from tpuctl.errors import UsageError
from tpuctl.lib.text import parse_number
from tpuctl.model.accelerators import AcceleratorType
from tpuctl.model.cloud import Tier
from tpuctl.money.grants import Grant

_COUNT = r"(?P<chips>[0-9][0-9,]*)"
_LINE = re.compile(
    rf"\b{_COUNT}\s+(?P<tier>spot|preemptible|on-?\s?demand|reserved)\s+Cloud\s+TPU\s+"
    r"(?P<generation>[a-z0-9]+)\s+chips?\s+in\s+(?:the\s+)?zone\s+(?P<zone>[a-z0-9]+(?:-[a-z0-9]+)+)",
    re.IGNORECASE,
)
_DEVICES = re.compile(
    rf"\b{_COUNT}\s+(?P<tier>spot|preemptible|on-?\s?demand|reserved)\s+Cloud\s+TPU\s+"
    r"(?P<type>v[0-9][0-9a-z]*-[0-9]+)\s+device(?:s|\(s\))?\s+in\s+(?:the\s+)?zone\s+"
    r"(?P<zone>[a-z0-9]+(?:-[a-z0-9]+)+)",
    re.IGNORECASE,
)
"""Older letters count devices: `5 on-demand Cloud TPU v3-8 device(s) in zone europe-west4-a`."""
_ALIKE = re.compile(r"\b[0-9][0-9,]*\s[^.;:]{0,40}?\bTPU\b[^.;:]{0,60}?\bzone\s+[\w-]+", re.IGNORECASE)
"""What looks like a line of a grant, whether it can be read or not."""
_MONTHS: Mapping[str, int] = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), start=1
    )
}
_ENDING = re.compile(r"\b(?:until|through|ends?|ending|expires?|expiring|valid to|end date)\b", re.IGNORECASE)
_FOR_DAYS = re.compile(r"\bfor\s+(?:a\s+period\s+of\s+)?([0-9]{1,4})[\s-]+days?\b", re.IGNORECASE)
"""Letters that give no date: `free access ... for 30 days`."""
_ISO = re.compile(r"\b(\d{4})-(\d{2})-(\d{2})\b")
_MONTH_FIRST = re.compile(r"\b([A-Z][a-z]{2,8})\.?\s+(\d{1,2})(?:st|nd|rd|th)?,?\s+(\d{4})\b")
_DAY_FIRST = re.compile(r"\b(\d{1,2})(?:st|nd|rd|th)?\s+([A-Z][a-z]{2,8})\.?,?\s+(\d{4})\b")


class GrantLine(Struct, frozen=True):
    """One line of a letter. `ends` is the last day on which it covers, if the letter says so."""

    chips: int
    tier: Tier
    generation: str
    zone: str
    ends: str | None = None


def parse_trc_letter(
    text: str, types: Mapping[str, AcceleratorType] | None = None, today: date | None = None
) -> tuple[GrantLine, ...]:
    """Every grant line anywhere in a pasted letter, quoted and wrapped ones too, in order. With `today` a
    number of days is an end, too, counted from then.

    `types` say how many chips the devices of older letters have; without them such lines are left out.
    """
    flat = _flat(text)
    ends = _find_end(text)
    days = days_granted(text)
    if ends is None and days is not None and today is not None:
        ends = today + timedelta(days=days - 1)
    last = ends.isoformat() if ends else None
    found = [(match.start(), _line(match, 1, match["generation"], last)) for match in _LINE.finditer(flat)]
    for match in _DEVICES.finditer(flat):
        device = (types or {}).get(match["type"].lower())
        if device is not None:
            found.append((match.start(), _line(match, device.chips, device.generation, last)))
    return tuple(dict.fromkeys(line for _, line in sorted(found, key=lambda each: each[0])))


def days_granted(text: str) -> int | None:
    """For how many days a letter grants, where it gives no last day."""
    found = _FOR_DAYS.search(_flat(text))
    return int(found[1]) if found and int(found[1]) and _find_end(text) is None else None


def unread_lines(text: str, types: Mapping[str, AcceleratorType]) -> tuple[str, ...]:
    """What looks like a grant and could not be read as one."""
    rest = _LINE.sub(".", _flat(text))
    rest = _DEVICES.sub(lambda match: "." if match["type"].lower() in types else match[0], rest)
    return tuple(match[0] for match in _ALIKE.finditer(rest))


def _flat(text: str) -> str:
    return re.sub(r"\s*\n[>\s]*", " ", text)


def _line(match: re.Match[str], chips_each: int, generation: str, ends: str | None) -> GrantLine:
    chips = parse_number(match["chips"].replace(",", ""))
    if chips is None:
        raise UsageError(f"{match['chips'][:20]}… is no number of chips", hint="the letter as it came")
    return GrantLine(
        chips=chips * chips_each,
        tier=_tier(match["tier"]),
        generation=generation.lower(),
        zone=match["zone"].lower(),
        ends=ends,
    )


def to_grants(lines: Iterable[GrantLine]) -> tuple[Grant, ...]:
    """Grants of a letter's lines."""
    return tuple(Grant(line.zone, line.tier, line.generation, line.chips, line.ends) for line in lines)


def _tier(word: str) -> Tier:
    lowered = word.lower()
    return Tier.ON_DEMAND if lowered.startswith("on") else Tier(lowered)


def _find_end(text: str) -> date | None:
    """The first date after a word such as `until` within one sentence."""
    flat = " ".join(text.split())
    for ending in _ENDING.finditer(flat):
        sentence = flat[ending.end() :][:100]
        stop = re.search(r"[.!?](?=\s+[A-Z])", sentence)
        part = sentence[: stop.start()] if stop else sentence
        found = _find_date(part)
        if found:
            return found
    return None


def _find_date(text: str) -> date | None:
    iso = _ISO.search(text)
    if iso:
        return _date(int(iso[1]), int(iso[2]), int(iso[3]))
    first = _MONTH_FIRST.search(text)
    if first:
        return _date(int(first[3]), _MONTHS.get(first[1][:3].lower(), 0), int(first[2]))
    day = _DAY_FIRST.search(text)
    return _date(int(day[3]), _MONTHS.get(day[2][:3].lower(), 0), int(day[1])) if day else None


def _date(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None
