"""Every kind of store behind one way of opening it again, as another process or machine would."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from google.oauth2.credentials import Credentials

from tests.support.clocks import FakeClock
from tests.support.memory.store import MemoryServer, MemoryStore
from tests.support.sim import RunningSim, running_sim
from tpuctl.cloud.storage import GoogleObjects
from tpuctl.state.bucket import BucketStore, write_identity
from tpuctl.state.sqlite import SqliteStore

KINDS = ("sqlite", "memory", "bucket")


class Place(Protocol):
    """One store, in a folder of its own."""

    def open(self) -> Any: ...

    def pass_time(self, seconds: float) -> None:
        """What is in the store now is so much older after this."""
        ...


class MemoryPlace:
    def __init__(self, _path: Path) -> None:
        self.clock = FakeClock()
        self._server = MemoryServer(self.clock)

    def open(self) -> MemoryStore:
        return MemoryStore(self._server)

    def pass_time(self, seconds: float) -> None:
        self.clock.sleep(seconds)


class SqlitePlace:
    """Its clock is the machine's, so everything in it is made older instead."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> SqliteStore:
        return SqliteStore(self._path)

    def pass_time(self, seconds: float) -> None:
        for path in (self._path.parent / "blobs").glob("??/*"):
            at = path.stat().st_mtime - seconds
            os.utime(path, (at, at))


class BucketPlace:
    """Every opening is another machine's, with a cache of its own."""

    def __init__(self, path: Path, sim: RunningSim) -> None:
        self._folder = path.parent
        self.sim = sim
        self.uri = f"gs://sim-bucket/{os.urandom(4).hex()}"
        self._opened = 0
        self.objects: Any = GoogleObjects(sim.profile["project"], sim.endpoint, Credentials(token=sim.token))
        write_identity(self.objects, self.uri, f"s{os.urandom(5).hex()}")

    def open(self) -> BucketStore:
        self._opened += 1
        cache = self._folder / f"cache{self._opened}"
        return BucketStore(self.objects, self.uri, cache, sleep=lambda _: None)

    def pass_time(self, seconds: float) -> None:
        """The server's clock moves on; stores that are open believe it a minute later."""
        self.sim.fault(kind="clock", seconds=seconds, times=0)


@contextmanager
def open_places(kind: str, folder: Path) -> Iterator[Callable[[Path], Place]]:
    """What makes places of one kind."""
    if kind == "bucket":
        with running_sim(folder) as sim:
            yield lambda path: BucketPlace(path, sim)
    else:
        yield {"memory": MemoryPlace, "sqlite": SqlitePlace}[kind]
