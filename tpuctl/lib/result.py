"""What a look at something gave, or why it gave nothing: what was not read is never taken for empty."""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import Struct

from tpuctl.errors import TpuctlError

T = TypeVar("T")


class Reading(Struct, Generic[T], frozen=True):
    """Either `value` or `error`."""

    value: T | None = None
    error: TpuctlError | None = None

    @property
    def why_not(self) -> str:
        """Why there is no value; empty where there is one."""
        return "" if self.error is None else self.error.message


class Unread(Struct, frozen=True):
    """Something that could not be read: what, why, and the command that mends it, if there is one."""

    what: str
    why: str
    fix: str | None = None
    error: TpuctlError | None = None

    @classmethod
    def of(cls, what: str, error: TpuctlError) -> Unread:
        return cls(what, error.message, error.hint, error)
