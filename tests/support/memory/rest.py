"""Google's JSON APIs as the simulated world answers them in the same process: no sockets, and for reads nothing
of `requests`, which takes more than the answer itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import requests
from requests.adapters import BaseAdapter

from tpuctl.cloud.rest import RestClient, refusal
from tpuctl.cloud.retry import read
from tpuctl.engine.ports import Clock
from tpuctl.sim.wire.messages import Request, Response
from tpuctl.sim.wire.status import DroppedConnectionError, Json

if TYPE_CHECKING:
    from tpuctl.cloud.compute_clients import ComputeClients

T = TypeVar("T")
ENDPOINT = "http://compute.memory"
Handle = Callable[[Request], Response]


class DirectRest(RestClient):
    """One call after the other; pauses before another try are those of `clock`."""

    def __init__(self, handle: Handle, clock: Clock) -> None:
        self._handle = handle
        self._sleep = clock.sleep

    def read(self, what: str, call: Callable[[], T]) -> T:
        return read(what, call, sleep=self._sleep)

    def together(self, calls: Sequence[Callable[[RestClient], T]]) -> list[T]:
        return [call(self) for call in calls]

    def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        timeout_s: float = 0.0,
    ) -> Json:
        del timeout_s
        url = urlsplit(path)
        query = {**parse_qs(url.query), **{name: [str(value)] for name, value in (params or {}).items()}}
        sent = b"" if body is None else json.dumps(body).encode()
        try:
            said = self._handle(Request(method, url.path, query, {}, sent))
        except DroppedConnectionError as error:
            raise requests.ConnectionError("Remote end closed connection") from error
        if said.status >= 400:
            raise refusal(_Refusal(said))
        answer: Json = json.loads(bytes(said.body))
        return answer


class _Refusal:
    """What `requests` would give."""

    reason = ""

    def __init__(self, said: Response) -> None:
        self.status_code = said.status
        self.content = bytes(said.body)

    def json(self) -> Json:
        answer: Json = json.loads(self.content)
        return answer


def typed_in_memory(clients: ComputeClients, handle: Handle, services: Iterable[str]) -> ComputeClients:
    """The library's clients of these services, which need `requests`, with the API itself behind it."""
    for service in services:
        session = clients.client(getattr(clients.v1, service)).transport._session
        session.trust_env = False  # else each call looks for proxies among all variables
        session.mount(ENDPOINT, _InMemory(handle))
    return clients


class _InMemory(BaseAdapter):
    def __init__(self, handle: Handle) -> None:
        super().__init__()
        self._handle = handle

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
            said = self._handle(asked)
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
