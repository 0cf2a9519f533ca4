"""Counts the bytes of a copy, in either direction, and tells about them now and then."""

from __future__ import annotations

import threading

from tpuctl.engine.events import Transfer
from tpuctl.engine.ports import Clock, EventSink

PROGRESS_EVERY_S = 1.0


class Meter:
    """Used by many threads. `moved` bytes left this machine, or came to it with `back`."""

    def __init__(self, clock: Clock, emit: EventSink, subject: str, hosts: int, *, back: bool = False) -> None:
        self._clock = clock
        self.emit = emit
        self._subject = subject
        self._hosts = hosts
        self._back = back
        self._began = self._told = clock.now()
        self._lock = threading.Lock()
        self._hosts_done = 0
        self._total = 0
        self._relayed: dict[int, int] = {}
        self.moved = 0

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
        now = self._clock.now()
        with self._lock:
            if now - self._told < PROGRESS_EVERY_S or not self._total:  # nothing but questions so far
                return
            self._told = now
            event = Transfer(
                self._subject,
                self.moved,
                max(self._total, self.moved),
                sum(self._relayed.values()),
                self._hosts_done,
                self._hosts,
                now - self._began,
                self._back,
            )
        self.emit(event)
