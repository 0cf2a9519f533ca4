"""The metrics services of many hosts, asked all at once through channels of the kept ssh connections.

Each process with chips has a service on a port of its own, on its host's loopback. One that is not there, or
takes the connection and says nothing, costs its own row and holds up no other.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tpuctl.telemetry.prometheus import parse_figures
from tpuctl.telemetry.sample import ChipSample, CoreState, NoServer, chips_of, merge_chips

if TYPE_CHECKING:
    from tpuctl.engine.ports import Remote
    from tpuctl.engine.services import Services
    from tpuctl.model.hosts import HostTarget

T = TypeVar("T")
Ports = Mapping[int, Sequence[int]]
"""By worker."""
Place = tuple[int, int]
"""Worker and port."""
ANSWERS_WITHIN_S = 4.0
"""A connection through a busy host's sshd, and answers from memory: a service that needs longer hangs."""
THREADS_MAX = 256
PAGE_MAX = 4 << 20


class MetricsServices:
    """The services on `targets`. Channels stay open, so whoever asks again and again pays for connections once.
    `per_chip`: devices of a chip, which `DEVICES_PER_CHIP` has."""

    def __init__(self, remote: Remote, targets: Sequence[HostTarget], *, per_chip: int = 1) -> None:
        self._remote = remote
        self._per_chip = per_chip
        self._targets = {target.worker: target for target in targets}
        self._channels: dict[Place, Any] = {}
        self._ways: dict[Place, ExitStack] = {}
        self._local: dict[Place, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for place in list(self._ways):
            self._drop(place)

    def read_chips(
        self, ports: Ports, timeout_s: float = ANSWERS_WITHIN_S
    ) -> tuple[list[ChipSample], list[NoServer]]:
        """The devices of all services, one for each, and the services that did not answer."""

        def ask(worker: int, port: int, channel: Any) -> list[ChipSample]:
            from tpuctl.telemetry.libtpu import read_metrics

            return chips_of(worker, port, read_metrics(channel, timeout_s), self._per_chip)

        samples, silent = self._ask_all(ports, ask)
        return merge_chips(samples), silent

    def read_cores(
        self, ports: Ports, timeout_s: float = ANSWERS_WITHIN_S, *, hlo: bool = False
    ) -> tuple[list[CoreState], list[NoServer]]:
        """What each core executes; with `hlo` also where in the program, which costs hosts something."""

        def ask(worker: int, port: int, channel: Any) -> list[CoreState]:
            from tpuctl.telemetry.libtpu import read_core_states

            return read_core_states(channel, timeout_s, worker=worker, port=port, hlo=hlo)

        return self._ask_all(ports, ask)

    def read_figures(self, ports: Ports, timeout_s: float = ANSWERS_WITHIN_S) -> dict[int, dict[str, float]]:
        """By worker, what its programs tell on these Prometheus ports; of most nothing, as none is there."""
        from http.client import HTTPException

        def ask(place: Place) -> dict[str, float]:
            try:
                return _scrape(self._way(place, lambda _why: None), timeout_s)
            except (OSError, HTTPException):
                self._drop(place)
                return {}

        told: dict[int, dict[str, float]] = {}
        places = [(worker, port) for worker, several in ports.items() for port in several]
        if places:
            with ThreadPoolExecutor(min(THREADS_MAX, len(places))) as pool:
                for (worker, _), figures in zip(places, pool.map(ask, places), strict=True):
                    told.setdefault(worker, {}).update(figures)
        return told

    def _ask_all(self, ports: Ports, ask: Callable[[int, int, Any], list[T]]) -> tuple[list[T], list[NoServer]]:
        import grpc

        def ask_one(place: Place) -> list[T] | NoServer:
            refused: list[str] = []
            try:
                return ask(*place, self._channel(place, refused.append))
            except grpc.RpcError as error:
                self._drop(place)
                return _silent(*place, error.code(), grpc.StatusCode, refused)
            except OSError as error:  # this machine has no port or descriptor left
                self._drop(place)
                return NoServer(*place, f"no way there from this machine: {error}")

        places = [(worker, port) for worker, several in ports.items() for port in several]
        if not places:
            return [], []
        with ThreadPoolExecutor(min(THREADS_MAX, len(places))) as pool:
            answers = list(pool.map(ask_one, places))
        told = [each for answer in answers if not isinstance(answer, NoServer) for each in answer]
        return told, [answer for answer in answers if isinstance(answer, NoServer)]

    def _channel(self, place: Place, report: Callable[[str], None]) -> Any:
        """That to the service; what keeps its connections from being made is reported while it is new."""
        from tpuctl.telemetry.libtpu import open_channel

        if place not in self._channels:
            channel = self._channels[place] = open_channel(self._way(place, report))
            self._ways[place].callback(channel.close)
        return self._channels[place]

    def _way(self, place: Place, report: Callable[[str], None]) -> int:
        """The port of this machine that leads there."""
        if place not in self._ways:
            worker, port = place
            forwarding = self._remote.forward(lambda: self._targets[worker], port, report=report)
            self._ways[place], self._local[place] = ExitStack(), forwarding.local_port
            self._ways[place].callback(forwarding.close)
        return self._local[place]

    def _drop(self, place: Place) -> None:
        """A service that is silent is connected to anew when it is asked again."""
        self._channels.pop(place, None)
        self._ways.pop(place, ExitStack()).close()


def _scrape(port: int, timeout_s: float) -> dict[str, float]:
    """One page of metrics. OSError or HTTPException where there is none, or not all of it in time."""
    from http.client import HTTPConnection

    with closing(HTTPConnection("127.0.0.1", port, timeout=timeout_s)) as connection:
        connection.connect()
        late = threading.Event()
        timer = threading.Timer(timeout_s, _cut, (connection.sock, late))  # a socket's own limit is by receive
        timer.start()
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            page = answer.read(PAGE_MAX).decode("utf-8", "replace")
        finally:
            timer.cancel()
        if late.is_set():
            raise TimeoutError(f"took longer than {timeout_s:g} s")
        return parse_figures(page) if answer.status == HTTPStatus.OK else {}


def _cut(connection: socket.socket, late: threading.Event) -> None:
    late.set()
    with suppress(OSError):  # it has ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)


def _silent(worker: int, port: int, code: Any, codes: Any, refused: Sequence[str]) -> NoServer:
    if code is codes.DEADLINE_EXCEEDED:
        return NoServer(worker, port, "took the connection and did not answer", hangs=True)
    if code in (codes.UNIMPLEMENTED, codes.NOT_FOUND):
        return NoServer(worker, port, "this version of libtpu does not tell that")
    why = f"no server: {refused[-1] if refused else code.name.lower()}"
    return NoServer(worker, port, why, absent=True)


def read_cores(
    services: Services, targets: Sequence[HostTarget], ports: Ports, *, hlo: bool = False
) -> tuple[list[CoreState], list[NoServer]]:
    """`MetricsServices.read_cores` once."""
    with MetricsServices(services.remote, targets) as opened:
        return opened.read_cores(ports, hlo=hlo)
