"""Clocks for tests that wait for nothing: time moves when somebody sleeps, and the simulated cloud with it."""

from __future__ import annotations

from tpuctl.sim.world.clock import ManualClock


class FakeClock:
    """Implements `ports.Clock` over a `ManualClock`. `skew_s`: how far this machine's clock is wrong."""

    def __init__(self, manual: ManualClock | None = None, *, skew_s: float = 0.0) -> None:
        self.manual = manual or ManualClock()
        self.skew_s = skew_s

    def now(self) -> float:
        return self.manual.now() + self.skew_s

    def sleep(self, seconds: float) -> None:
        self.manual.advance(max(0.0, seconds))


class WatchedClock(ManualClock):
    """A `ManualClock` that counts the actions of the simulated cloud which it has set off."""

    def __init__(self, start: float = 1_790_000_000.0) -> None:
        super().__init__(start)
        self.actions = 0

    def move_to(self, instant: float) -> None:
        self.actions += 1
        super().move_to(instant)

    def advance(self, seconds: float = 0.0) -> None:
        self.actions -= 1  # its own last step sets nothing off
        super().advance(seconds)
