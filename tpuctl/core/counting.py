"""Numbers with their nouns, as people say them."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 host`, `4 hosts`, `no hosts` never: 0 is a number too. `plural` where it is not `noun` with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


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
