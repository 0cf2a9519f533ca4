"""Words for a shell, so that what a user typed is never syntax; and secrets that do not print."""

from __future__ import annotations

import shlex


def quote(value: str | int | float) -> str:
    """One word of POSIX sh that expands to exactly `value`, newlines and non-ASCII included.

    ValueError for a NUL character, which no argument of a process can hold.
    """
    text = str(value)
    if "\0" in text:
        raise ValueError(f"a NUL character cannot be passed to a command: {text!r}")
    return shlex.quote(text)


class Secret:
    """A value that shows only to who asks for it by `reveal()`: logs, errors and JSON get the mask."""

    __slots__ = ("_value",)
    MASK = "********"

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __str__(self) -> str:
        return self.MASK

    def __repr__(self) -> str:
        return f"Secret({self.MASK})"

    def __format__(self, spec: str) -> str:
        return format(self.MASK, spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> str:
        raise TypeError("a secret is not stored")
