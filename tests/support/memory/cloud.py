"""The `Cloud` port over a simulated world in the same process: the real adapter, the world's API, no sockets.

What was read is remembered as long as nothing changed in the world.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from tests.support.memory.rest import DirectRest
from tpuctl.cloud.tpu import GoogleCloud
from tpuctl.engine.ports import Clock
from tpuctl.model.cloud import Listing
from tpuctl.sim.api.tpu_rest import TpuRestApi
from tpuctl.sim.wire.messages import Request, Response, json_response
from tpuctl.sim.wire.status import HTTP_STATUS, ApiError, Json
from tpuctl.sim.world.world import World

T = TypeVar("T")


class ParsedLists:
    """Parsed resources by name, kept while their JSON stays the same; and whole answers, kept while `changes`
    (called before each) stays the same and is not None."""

    def __init__(self, changes: Callable[[], int | None] = lambda: None) -> None:
        self._changes = changes
        self._parsed: dict[str, tuple[Json, Any]] = {}
        self._lists: dict[tuple[str, str], tuple[int, Any]] = {}

    def parse(self, data: Json, parse: Callable[[Json], T]) -> T:
        known = self._parsed.get(data["name"])
        if known is not None and known[0] == data:
            found: T = known[1]
            return found
        fresh = parse(data)
        self._parsed[data["name"]] = (data, fresh)
        return fresh

    def list(self, kind: str, zone: str, read: Callable[[], T]) -> T:
        now = self._changes()
        known = self._lists.get((kind, zone))
        if now is not None and known is not None and known[0] == now:
            found: T = known[1]
            return found
        answer = read()
        if now is not None:
            self._lists[kind, zone] = (now, answer)
        return answer


class _WorldRest(DirectRest):
    """Calls the API of a world."""

    def __init__(self, world: World, clock: Clock, lists: ParsedLists) -> None:
        super().__init__(partial(_answer, TpuRestApi(world)), clock)
        self._world = world
        self._lists = lists

    def find(self, path: str, what: str, parse: Callable[[Json], T]) -> T | None:
        ask = partial(super().find, path, what, partial(self._lists.parse, parse=parse))
        if self._world._kernel.hidden:  # tests hide nodes from one moment to the next, by no call
            return ask()
        return self._lists.list("", path, ask)


def _answer(api: TpuRestApi, request: Request) -> Response:
    try:
        return api.handle(request)
    except ApiError as error:
        return json_response(error.to_http_body(), HTTP_STATUS[error.code])


class WorldCloud(GoogleCloud):
    """`lists` may be shared by several clients of one world; `beat` lets hosts in memory publish their
    heartbeats before they are read."""

    def __init__(
        self,
        world: World,
        clock: Clock,
        lists: ParsedLists | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._project = world.options.project
        self._lists = lists or ParsedLists()
        self._rest = _WorldRest(world, clock, self._lists)
        self._beat = beat

    def list_host_heartbeats(self, zone: str, name: str) -> Mapping[int, str]:
        self._beat()
        return super().list_host_heartbeats(zone, name)

    def _list(self, what: str, zone: str, kind: str, parse: Callable[[Json], T]) -> Listing[T]:
        known = partial(self._lists.parse, parse=parse)
        return self._lists.list(kind, zone, partial(super()._list, what, zone, kind, known))
