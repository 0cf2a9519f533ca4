"""Numbers with their nouns, as people say them."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 host`, `4 hosts`, `no hosts` never: 0 is a number too. `plural` where it is not `noun` with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
