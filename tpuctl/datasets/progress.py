"""Counts bytes and files, and tells about them now and then."""

from __future__ import annotations

import threading

from tpuctl.engine.events import DataProgress
from tpuctl.engine.ports import Clock, EventSink

PROGRESS_EVERY_S = 1.0


class Meter:
    """Used by several threads. `action` is what is done to the files, as `packed`."""

    def __init__(
        self, clock: Clock, emit: EventSink, subject: str, action: str, files: int, total: int
    ) -> None:
        self._clock = clock
        self._emit = emit
        self._subject = subject
        self._action = action
        self._files = files
        self._total = total
        self._began = self._told = clock.now()
        self._lock = threading.Lock()
        self._done_bytes = self._done_files = 0

    def add(self, count: int, files: int) -> None:
        """So many bytes and files more are done."""
        now = self._clock.now()
        with self._lock:
            self._done_bytes += count
            self._done_files += files
            if now - self._told < PROGRESS_EVERY_S:
                return
            self._told = now
            event = DataProgress(
                self._subject,
                self._action,
                self._done_bytes,
                self._total,
                self._done_files,
                self._files,
                now - self._began,
            )
        self._emit(event)

    def take_back(self, count: int, files: int) -> None:
        """They were not: they are done once more."""
        with self._lock:
            self._done_bytes -= count
            self._done_files -= files
