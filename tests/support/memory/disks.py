"""The `Disks` port over a simulated world in the same process, and disks on hosts in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import requests
from google.auth.credentials import AnonymousCredentials
from requests.adapters import BaseAdapter

from tpuctl.cloud.disks import GoogleDisks
from tpuctl.sim.compute.rest import ComputeApi
from tpuctl.sim.wire.messages import Request
from tpuctl.sim.wire.status import DroppedConnectionError

if TYPE_CHECKING:
    from tests.support.memory.host import MemoryHost

ENDPOINT = "http://compute.memory"


class WorldDisks:
    """Implements `ports.Disks`. The API is made when it is first asked: most worlds have no disks."""

    def __init__(self, project: str, api: Callable[[], ComputeApi]) -> None:
        self._project = project
        self._api = api
        self._disks: GoogleDisks | None = None

    def __getattr__(self, name: str) -> Any:
        if self._disks is None:
            self._disks = GoogleDisks(self._project, ENDPOINT, AnonymousCredentials())
            self._disks._rest._session.mount(ENDPOINT, _InMemory(self._api()))
        return getattr(self._disks, name)


class _InMemory(BaseAdapter):
    """Answers requests by the API itself."""

    def __init__(self, api: ComputeApi) -> None:
        super().__init__()
        self._api = api

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        url = urlsplit(str(request.url))
        body = request.body or b""
        asked = Request(
            str(request.method),
            url.path,
            parse_qs(url.query),
            {name.lower(): str(value) for name, value in request.headers.items()},
            body.encode() if isinstance(body, str) else bytes(body),
        )
        try:
            said = self._api.handle(asked)
        except DroppedConnectionError as error:
            raise requests.ConnectionError("Remote end closed connection") from error
        answer = requests.Response()
        answer.status_code = said.status
        answer._content = bytes(said.body)
        answer.request = request
        answer.url = str(request.url)
        return answer

    def close(self) -> None:
        """Nothing is open."""


def mount(host: MemoryHost, parameters: Mapping[str, Any]) -> bool:
    """Mounts a disk; False where the host has none that can be used so."""
    if not any(each.read_only == parameters["read_only"] for each in host.devices):
        return False
    row = {key: parameters[key] for key in ("path", "read_only", "word")}
    host.mounts.append({**row, "device": f"8:{16 * (1 + len(host.mounts))}", "unsafe": False, "uuid": ""})
    return True


def unmount(host: MemoryHost, matches: Callable[[Mapping[str, object]], bool]) -> None:
    """Unmounts the disks that match."""
    host.mounts = [each for each in host.mounts if not matches(each)]
