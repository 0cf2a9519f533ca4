"""Words for people: numbers with their nouns, workers in few words, and what a wrong word was meant to be."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 host`, `4 hosts`, `no hosts` never: 0 is a number too. `plural` where it is not `noun` with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def render_value(value: float) -> str:
    """A measured number in four digits or so: `0.01234`, `1.25e-09`, `40,130`, `4.013e+12`."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def suggest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known word that `word` was probably meant to be, whatever its case; None if none is like it."""
    from difflib import get_close_matches  # 20 ms, and only for words that are wrong

    words = {each.lower(): each for each in known}
    return next((words[near] for near in get_close_matches(word.lower(), words, n=1, cutoff=cutoff)), None)


DIGITS_MAX = 18
"""Of a number that somebody types: more say nothing, and Python refuses to convert 4,301 of them."""


def parse_number(word: str) -> int | None:
    """The whole number that `word` is, in the digits 0 to 9; None for all else."""
    plain = word.isascii() and word.isdigit() and len(word) <= DIGITS_MAX
    return int(word) if plain else None


def sized(count: int) -> str:
    """A number of bytes with three digits or so: `0 B`, `512 B`, `1.5 KiB`, `80.0 MiB`."""
    if count < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        size /= 1024
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} EiB"


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]?)(?:iB|B)?", re.IGNORECASE)


def parse_sized(text: str) -> int:
    """A number of bytes as `sized` writes them: `2GiB`, `500 MiB`, `1.5G`. ValueError for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no size")
    return int(float(found[1]) * 1024 ** (" KMGTP".index(found[2].upper() or " ")))


T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

Place = int | tuple[int, int]
"""A worker, or a process of one: (3, 2) is 3.2."""
PLACE = "Where it runs"
"""The group in help of what says where a run goes."""
WORKERS_HELP = "Only these workers, such as 0 or 0-3,7."
"""What `--worker` takes, see `parse_workers`."""

_WORD = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")


def fold_workers(places: Iterable[Place]) -> str:
    """`0-2,6` for 0, 1, 2 and 6, in any order, `1.0-3` for four processes of worker 1; empty for none."""
    spans: list[tuple[str, int, int]] = []
    for place in sorted_places(places):
        owner, number = ("", place) if isinstance(place, int) else (f"{place[0]}.", place[1])
        if spans and spans[-1][0] == owner and number == spans[-1][2] + 1:
            spans[-1] = (owner, spans[-1][1], number)
        else:
            spans.append((owner, number, number))
    return ",".join(f"{owner}{low}" if low == high else f"{owner}{low}-{high}" for owner, low, high in spans)


def sorted_places(places: Iterable[Place]) -> list[Place]:
    """Each once, workers before their processes."""
    return sorted(set(places), key=lambda place: (place, -1) if isinstance(place, int) else place)


def fold_label(name: str, places: Iterable[Place]) -> str:
    """`big[0-2,6]`, or `big-3` for one worker, `big-3.2` for one of its processes."""
    found = sorted_places(places)
    return f"{name}-{fold_workers(found)}" if len(found) == 1 else f"{name}[{fold_workers(found)}]"


def common_cause(label: str, detail: str) -> str:
    """Why worker `label` failed, without its name and address at the beginning: equal for equal causes."""
    return re.sub(rf"^(?:{re.escape(label)}|\S+:[0-9]+) ", "", detail)


def parse_workers(text: str, count: int) -> tuple[int, ...]:
    """The workers that `0-3,7` or `all` names among `count`, ascending. ValueError names the offending word."""
    if text.strip() == "all":
        return tuple(range(count))
    found: set[int] = set()
    for word in (part.strip() for part in text.split(",")):
        match = _WORD.fullmatch(word)
        if match is None:
            raise ValueError(f"{word!r} is not a worker number, a range such as 0-3, or all")
        low = int(match[1])
        high = int(match[2]) if match[2] else low
        if low > high:
            raise ValueError(f"{word!r} runs backwards")
        if high >= count:
            last = "only worker 0" if count == 1 else f"workers 0 to {count - 1}"
            raise ValueError(f"{word!r} is out of range: the slice has {last}")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def group_equal(items: Sequence[T], key: Callable[[T], K]) -> list[tuple[K, list[T]]]:
    """Items with equal keys together, largest group first, else in order of first appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return sorted(groups.items(), key=lambda group: -len(group[1]))
