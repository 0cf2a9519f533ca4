"""One worker of an attempt, as its host shows it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class WorkerState(StrEnum):
    """What one worker's supervisor says of an attempt; UNREACHABLE when nobody answered."""

    ABSENT = "absent"
    PREPARED = "prepared"
    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"
    UNREACHABLE = "unreachable"
    CLOSED = "closed"
    """It answers, but refuses this machine or shows a key that is not its own: no sign that it is dead."""


class HostEvent(StrEnum):
    """What happened to a worker's host, as the host itself tells it."""

    NONE = ""
    SHUT_DOWN = "shut-down"
    """Its supervisor was told to end, and not by us: maintenance, a reboot or a preemption begins like that."""
    REBOOTED = "rebooted"
    """It has another boot id than when the attempt began."""
    MAINTENANCE = "maintenance"
    """The metadata server announces that it is terminated for maintenance, and its program has ended."""
    PREEMPTED = "preempted"
    """The metadata server says that it is preempted."""


class WorkerView(Struct, frozen=True):
    """One look at one worker. `ran_s` is how long its program ran, by the host's clock; `survivors` names
    processes of the attempt that nobody watches."""

    worker: int
    state: WorkerState
    exit_status: int | None = None
    signal: int | None = None
    detail: str = ""
    event: HostEvent = HostEvent.NONE
    interrupted: bool = False
    """It was told to end, and not by us: whatever its exit status, it did not come to its own end."""
    stop_asked: bool = False
    ran_s: float | None = None
    survivors: tuple[int, ...] = ()
    survivors_said: str = ""

    @property
    def over(self) -> bool:
        return self.state in {WorkerState.EXITED, WorkerState.LOST, WorkerState.ABSENT}

    @property
    def succeeded(self) -> bool:
        return self.state is WorkerState.EXITED and self.exit_status == 0 and not self.interrupted

    @property
    def healthy(self) -> bool:
        going_down = self.event in {HostEvent.SHUT_DOWN, HostEvent.PREEMPTED}
        return self.state in {WorkerState.RUNNING, WorkerState.STARTING} and not going_down
