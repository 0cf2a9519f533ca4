"""How far contents have come on their way to or from workers, told to whoever watches."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from tpuctl.engine.events import Transfer
from tpuctl.engine.ports import Clock, EventSink

PROGRESS_EVERY_S = 1.0


@dataclass
class TransferProgress:
    """Used by many threads. `moved` bytes left this machine, or came to it with `back`."""

    clock: Clock
    emit: EventSink
    subject: str
    hosts: int
    back: bool = False

    def __post_init__(self) -> None:
        self._began = self._told = self.clock.now()
        self._lock = threading.Lock()
        self._hosts_done = self._total = self.moved = 0
        self._relayed: dict[int, int] = {}

    def expect(self, more: int) -> None:
        with self._lock:
            self._total += more

    def add(self, count: int) -> None:
        with self._lock:
            self.moved += count
        self._emit_progress()

    def relayed(self, worker: int, total: int) -> None:
        with self._lock:
            self._relayed[worker] = total
        self._emit_progress()

    def done(self, hosts: int) -> None:
        with self._lock:
            self._hosts_done = hosts
        self._emit_progress()

    def _emit_progress(self) -> None:
        now = self.clock.now()
        with self._lock:
            if now - self._told < PROGRESS_EVERY_S or not self._total:  # nothing but questions so far
                return
            self._told = now
            event = Transfer(
                self.subject,
                self.moved,
                max(self._total, self.moved),
                sum(self._relayed.values()),
                self._hosts_done,
                self.hosts,
                now - self._began,
                self.back,
            )
        self.emit(event)
