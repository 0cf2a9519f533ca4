"""Several looks at once, none of which can spoil or hold up the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from msgspec import Struct

from tpuctl.errors import TpuctlError, TransientError

LOOK_TIMEOUT_S = 25.0
"""For all looks together: one slow API call (20 s, with its own retries cut off) and a little."""


def read_all(
    looks: Mapping[str, Callable[[], Any]],
    *,
    timeout_s: float = LOOK_TIMEOUT_S,
    on_done: Callable[[str], None] = lambda _name: None,
) -> dict[str, Reading[Any]]:
    """What each look gave, or the TpuctlError that it raised; one that takes longer is an error too.

    Each look has a thread of its own that ends with the process, so a hanging one holds up nothing. Other
    exceptions are bugs and raised here.
    """
    results: dict[str, Reading[Any] | BaseException] = {}
    changed = threading.Condition()

    def work(name: str, look: Callable[[], Any]) -> None:
        try:
            result: Reading[Any] | BaseException = Reading(look())
        except TpuctlError as error:
            result = Reading(error=error)
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            result = error
        with changed:
            results[name] = result
            changed.notify_all()
        on_done(name)

    threads = [
        threading.Thread(target=work, args=item, name=f"look-{item[0]}", daemon=True) for item in looks.items()
    ]
    for thread in threads:
        thread.start()
    with changed:
        changed.wait_for(lambda: len(results) == len(looks), timeout=timeout_s)
        found = dict(results)
    return {name: _reading(found.get(name), _too_late(name, timeout_s)) for name in looks}


def _too_late(name: str, timeout_s: float) -> TransientError:
    return TransientError(f"{name}: no answer within {timeout_s:.0f} s", hint="try again")


def _reading(result: Reading[Any] | BaseException | None, late: TpuctlError) -> Reading[Any]:
    if result is None:
        return Reading(error=late)
    if isinstance(result, BaseException):
        raise result
    return result


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
