"""Adapters that stop the process, as it were, at the k-th call that changes something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.memory.services import MemoryServices
from tests.support.services import SimServices
from tpuctl.errors import TransientError

READ_VERBS = {"hello", "facts", "status", "read", "news", "follow", "attempts"}
STORE_CHANGES = {"put", "append", "put_blob", "put_blobs", "delete", "remove_blob", "remove_entries"}
CLOUD_CHANGES = {
    "update_node",
    "set_data_disks",
    "create_node",
    "create_queued",
    "delete_node",
    "delete_queued",
}
DISK_CHANGES = {
    "create_disk",
    "create_snapshot",
    "resize_disk",
    "set_throughput",
    "delete_disk",
    "delete_snapshot",
}


class Crash(BaseException):
    """Like kill -9: nothing in the product catches it."""


class CrashPoint:
    """Counts changing calls; at number `at` (from 1) it crashes before or after the call took effect."""

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        self.at = at
        self.after = after
        self.count = 0
        self.dead = False

    def around(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.dead:
            raise Crash("already dead")
        self.count += 1
        if self.count != self.at:
            return call(*args, **kwargs)
        self.dead = True
        if self.after:
            call(*args, **kwargs)
        raise Crash(f"at changing call {self.count}")


class LostAnswer:
    """Counts changing calls; number `at` (from 1) takes effect, and its answer does not arrive."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.count = 0

    def around(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        found = call(*args, **kwargs)
        if self.count == self.at:
            raise TransientError("the connection was cut before the answer came")
        return found


class Sleep:
    """Counts changing calls; before or after number `at` (from 1) the process sleeps while `meanwhile`
    happens."""

    def __init__(self, at: int, meanwhile: Callable[[], None], *, after: bool = False) -> None:
        self.at = at
        self.after = after
        self.count = 0
        self._meanwhile = meanwhile

    def around(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        due = self.count == self.at
        if due and not self.after:
            self._meanwhile()
        found = call(*args, **kwargs)
        if due and self.after:
            self._meanwhile()
        return found


class Crashing:
    """Passes everything on to `inner`, counting the calls that `changes` says change something."""

    def __init__(
        self,
        inner: Any,
        point: CrashPoint | LostAnswer | Sleep,
        changes: Callable[[str, tuple[Any, ...]], bool],
    ) -> None:
        self._inner = inner
        self._point = point
        self._changes = changes

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._changes(name, args):
                return self._point.around(found, *args, **kwargs)
            return found(*args, **kwargs)

        return call


def remote_changes(name: str, args: tuple[Any, ...]) -> bool:
    if name != "run" or args[1].sink is not None:
        return False
    return not READ_VERBS.issuperset(args[1].command.rpartition(" ")[2].split("+"))


def make_crashing(services: SimServices | MemoryServices, point: CrashPoint | Sleep) -> None:
    """Puts `point` between the workflows and their store, cloud and hosts."""
    services.store = Crashing(services.store, point, lambda name, _: name in STORE_CHANGES)
    services.remote = Crashing(services.remote, point, remote_changes)
    _endanger_cloud(services, point)


def lose_answers(services: SimServices | MemoryServices, point: LostAnswer) -> None:
    """Puts `point` between the workflows and their cloud."""
    _endanger_cloud(services, point)


def _endanger_cloud(services: SimServices | MemoryServices, point: CrashPoint | LostAnswer | Sleep) -> None:
    services.cloud = Crashing(services.cloud, point, lambda name, _: name in CLOUD_CHANGES)
    services.disks = Crashing(services.disks, point, lambda name, _: name in DISK_CHANGES)
    if isinstance(services, MemoryServices):
        services.compute_tpus.put_around(point.around)
    else:
        services.compute_tpus = Crashing(services.compute_tpus, point, lambda name, _: name in CLOUD_CHANGES)
