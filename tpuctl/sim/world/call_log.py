"""Which calls changed, or tried to change, the simulated cloud."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class JournalEntry:
    """One mutating API call. `status` is the google.rpc code's name, or DROPPED when the answer was lost."""

    sequence: int
    time: float
    method: str
    resource: str
    status: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


KEPT = 100_000
"""How many calls are remembered; more than anybody has asked for."""


class Journal:
    """Append-only, thread-safe; the oldest of very many entries are forgotten."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._entries: deque[JournalEntry] = deque(maxlen=KEPT)
        self._number = 0
        self._lock = threading.Lock()

    def record(self, method: str, resource: str, status: str) -> JournalEntry:
        with self._lock:
            self._number += 1
            entry = JournalEntry(self._number, self._now(), method, resource, status)
            self._entries.append(entry)
        return entry

    def entries(self) -> list[JournalEntry]:
        with self._lock:
            return list(self._entries)

    @property
    def count(self) -> int:
        """How many calls were recorded."""
        with self._lock:
            return self._number

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._number = 0
