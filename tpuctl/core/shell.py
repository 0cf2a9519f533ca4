"""Shell commands as values, so that what a user typed is never syntax; and secrets that do not print."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass


def quote(value: str | int | float) -> str:
    """One word of POSIX sh that expands to exactly `value`, newlines and non-ASCII included.

    ValueError for a NUL character, which no argument of a process can hold.
    """
    text = str(value)
    if "\0" in text:
        raise ValueError(f"a NUL character cannot be passed to a command: {text!r}")
    return shlex.quote(text)


@dataclass(frozen=True)
class Shell:
    """A command line built from literal syntax (`of`, `lit`) and quoted values (`arg`, `args`).

    >>> Shell.of("test -f ").arg("a b").lit(" && cat ").path("-x").text
    "test -f 'a b' && cat ./-x"
    """

    text: str

    @classmethod
    def of(cls, literal: str) -> Shell:
        return cls(literal)

    @classmethod
    def command(cls, *words: str | int | float) -> Shell:
        """A simple command, every word quoted."""
        return cls(" ".join(quote(word) for word in words))

    def lit(self, literal: str) -> Shell:
        """Appends syntax written by us, never anything typed by a user."""
        return Shell(self.text + literal)

    def arg(self, value: str | int | float) -> Shell:
        """Appends one quoted word."""
        return Shell(self.text + quote(value))

    def args(self, values: Iterable[str | int | float]) -> Shell:
        """Appends quoted words with spaces between."""
        return Shell(self.text + " ".join(quote(value) for value in values))

    def path(self, value: str) -> Shell:
        """Appends a quoted path that no program takes for an option."""
        return self.arg(f"./{value}" if value.startswith("-") else value)

    def __str__(self) -> str:
        return self.text


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
