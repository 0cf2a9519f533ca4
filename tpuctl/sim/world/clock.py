"""The simulator's time, and what is due when.

Progress is a function of time only: actions are put on a schedule by calls that change the world and run when
their time has come, on a thread with the real clock or inside `ManualClock.advance` in a test. Reading the
world never runs one.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 86_400.0
"""Python cannot wait for more than 292 years, and a request may be valid for longer."""
Action = Callable[[], None]
_Entry = tuple[float, int, Action]


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def pause(self, seconds: float) -> None:
        """Lets an answer take its time."""
        ...


class RealClock:
    """Wall-clock time."""

    def now(self) -> float:
        return time.time()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """Time that stands still until `advance`."""

    def __init__(self, start: float = 1_790_000_000.0) -> None:
        self._now = start
        self._followers: list[Callable[[float], None]] = []

    def now(self) -> float:
        return self._now

    def pause(self, _seconds: float) -> None:
        """Answers take no time."""

    def follow(self, run_until: Callable[[float], None]) -> None:
        """Registers what `advance` calls with the new time."""
        self._followers.append(run_until)

    def move_to(self, instant: float) -> None:
        self._now = max(self._now, instant)

    def advance(self, seconds: float = 0.0) -> None:
        """Moves time and runs, in order, everything that is due by then."""
        target = self._now + seconds
        for run_until in self._followers:
            run_until(target)
        self.move_to(target)


class Schedule(Protocol):
    """What is due when. Delays are in simulated seconds, already divided by the speed."""

    def after(self, delay_s: float, action: Action) -> None: ...

    def flush(self) -> None:
        """Called at the end of every mutating call: runs what is due already, if nobody else does."""
        ...

    def clear(self) -> None: ...

    def settle(self, timeout_s: float) -> bool:
        """Waits until nothing is due and nothing runs; False when the time is over first."""
        ...

    def close(self) -> None: ...


class ManualSchedule:
    """Runs actions in the caller's thread, driven by a `ManualClock`."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._heap: list[_Entry] = []
        self._ticket = itertools.count()
        self._lock = threading.RLock()
        clock.follow(self._run_until)

    def after(self, delay_s: float, action: Action) -> None:
        with self._lock:
            heapq.heappush(self._heap, (self._clock.now() + delay_s, next(self._ticket), action))

    def _pop_due(self, target: float) -> _Entry | None:
        with self._lock:
            return heapq.heappop(self._heap) if self._heap and self._heap[0][0] <= target else None

    def _run_until(self, target: float) -> None:
        while (entry := self._pop_due(target)) is not None:
            self._clock.move_to(entry[0])
            entry[2]()

    def flush(self) -> None:
        self._run_until(self._clock.now())

    def clear(self) -> None:
        with self._lock:
            self._heap.clear()

    def settle(self, timeout_s: float) -> bool:
        del timeout_s  # nothing runs in the background
        self.flush()
        return True

    def close(self) -> None:
        self.clear()


class ThreadedSchedule:
    """Runs actions on a small pool when the real clock says so."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[_Entry] = []
        self._ticket = itertools.count()
        self._changed = threading.Condition()
        self._running = 0
        self._closed = False
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="sim-action")
        self._thread = threading.Thread(target=self._loop, name="sim-schedule", daemon=True)
        self._thread.start()

    def after(self, delay_s: float, action: Action) -> None:
        with self._changed:
            heapq.heappush(self._heap, (self._clock.now() + delay_s, next(self._ticket), action))
            self._changed.notify_all()

    def _loop(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                wait_s = self._heap[0][0] - self._clock.now() if self._heap else None
                if wait_s is None or wait_s > 0:
                    self._changed.wait(None if wait_s is None else min(wait_s, _LONGEST_WAIT_S))
                    continue
                action = heapq.heappop(self._heap)[2]
                self._running += 1
            self._pool.submit(self._run, action)

    def _run(self, action: Action) -> None:
        try:
            action()
        except Exception:
            log.exception("a scheduled action of the simulator failed")
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def flush(self) -> None:
        """The scheduler's thread runs what is due."""

    def clear(self) -> None:
        with self._changed:
            self._heap.clear()
            self._changed.notify_all()

    def _busy(self) -> bool:
        return self._running > 0 or bool(self._heap and self._heap[0][0] <= self._clock.now())

    def settle(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while self._busy():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 0.05))
            return True

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify_all()
        self._thread.join()
        self._pool.shutdown(wait=True)


def schedule_for(clock: Clock) -> Schedule:
    return ManualSchedule(clock) if isinstance(clock, ManualClock) else ThreadedSchedule(clock)
