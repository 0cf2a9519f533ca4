"""The `Cloud` port for TPUs of Compute Engine over a simulated world in the same process: the real adapter,
with both of its ways to the API itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from google.auth.credentials import AnonymousCredentials

from tests.support.memory.rest import ENDPOINT, DirectRest, Handle, typed_in_memory
from tpuctl.cloud.groups import KINDS, ComputeTpus
from tpuctl.cloud.rest import RestClient
from tpuctl.engine.ports import Clock
from tpuctl.sim.compute.rest import ComputeApi

if TYPE_CHECKING:
    from tpuctl.cloud.compute_clients import ComputeClients


class _TpusInMemory(ComputeTpus):
    def __init__(self, project: str, handle: Handle, clock: Clock) -> None:
        super().__init__(project, ENDPOINT, AnonymousCredentials())
        self._handle = handle
        self._reads.rest = DirectRest(handle, clock)
        self.change = super()._change

    def _change(self, *asked: Any) -> Any:
        return self.change(*asked)

    @cached_property
    def _clients(self) -> ComputeClients:
        services = [kind.service for kind in KINDS.values()]
        return typed_in_memory(super()._clients, self._handle, services)


class WorldTpus:
    """Implements `cloud_ports.Cloud`. The API is made when it is first asked: most worlds have no instances.
    `beat` lets hosts in memory publish their heartbeats before they are read."""

    def __init__(
        self, project: str, api: Callable[[], ComputeApi], clock: Clock, beat: Callable[[], None]
    ) -> None:
        self._project = project
        self._api = api
        self._clock = clock
        self._beat = beat

    @cached_property
    def _tpus(self) -> _TpusInMemory:
        return _TpusInMemory(self._project, self._api().handle, self._clock)

    def put_around(self, around: Callable[..., Any]) -> None:
        """Gives `around` each call of the API that changes something, and its arguments: several of one call of
        the port, where that is of several hosts."""
        inner = self._tpus.change
        self._tpus.change = lambda *asked: around(inner, *asked)

    @property
    def rest(self) -> RestClient:
        """For calls that a person makes beside tpuctl."""
        return self._tpus._reads.rest

    def list_host_heartbeats(self, zone: str, name: str) -> Mapping[int, str]:
        self._beat()
        return self._tpus.list_host_heartbeats(zone, name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tpus, name)
