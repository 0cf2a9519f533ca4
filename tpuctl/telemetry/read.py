"""The metrics services of many hosts, asked all at once through channels of the kept ssh connections.

Each process with chips has a service on a port of its own, on its host's loopback. One that is not there, or
takes the connection and says nothing, costs its own row and holds up no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tpuctl.telemetry.sample import ChipSample, CoreState, NoServer, chips_of, merge_chips

if TYPE_CHECKING:
    from tpuctl.engine.ports import Remote
    from tpuctl.engine.services import Services
    from tpuctl.model.hosts import HostTarget

T = TypeVar("T")
Ports = Mapping[int, Sequence[int]]
"""By worker."""
ANSWERS_WITHIN_S = 4.0
"""A connection through a busy host's sshd, and answers from memory: a service that needs longer hangs."""
THREADS_MAX = 256


class MetricsServices:
    """The services behind `ports` of `targets`. Channels are opened once, so whoever asks again and again pays
    for connections once. `per_chip`: devices of a chip, which `DEVICES_PER_CHIP` has."""

    def __init__(
        self, remote: Remote, targets: Sequence[HostTarget], ports: Ports, *, per_chip: int = 1
    ) -> None:
        self._per_chip = per_chip
        self._stack = ExitStack()
        self._refused: dict[tuple[int, int], str] = {}
        self._channels: dict[tuple[int, int], Any] = {}
        try:
            for target in targets:
                for port in ports.get(target.worker, ()):
                    self._channels[target.worker, port] = self._open(remote, target, port)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    def read_chips(self, timeout_s: float = ANSWERS_WITHIN_S) -> tuple[list[ChipSample], list[NoServer]]:
        """The devices of all services, one for each, and the services that did not answer."""

        def ask(worker: int, port: int, channel: Any) -> list[ChipSample]:
            from tpuctl.telemetry.libtpu import read_metrics

            return chips_of(worker, port, read_metrics(channel, timeout_s), self._per_chip)

        samples, silent = self._ask_all(ask)
        return merge_chips(samples), silent

    def read_cores(
        self, timeout_s: float = ANSWERS_WITHIN_S, *, hlo: bool = False
    ) -> tuple[list[CoreState], list[NoServer]]:
        """What each core executes; with `hlo` also where in the program, which costs hosts something."""

        def ask(worker: int, port: int, channel: Any) -> list[CoreState]:
            from tpuctl.telemetry.libtpu import read_core_states

            return read_core_states(channel, timeout_s, worker=worker, port=port, hlo=hlo)

        return self._ask_all(ask)

    def _open(self, remote: Remote, target: HostTarget, port: int) -> Any:
        from tpuctl.telemetry.libtpu import open_channel

        note = partial(self._refused.__setitem__, (target.worker, port))
        forwarding = remote.forward(lambda: target, port, report=note)
        self._stack.callback(forwarding.close)
        channel = open_channel(forwarding.local_port)
        self._stack.callback(channel.close)
        return channel

    def _ask_all(self, ask: Callable[[int, int, Any], list[T]]) -> tuple[list[T], list[NoServer]]:
        import grpc

        def ask_one(place: tuple[int, int]) -> list[T] | NoServer:
            self._refused.pop(place, None)
            try:
                return ask(*place, self._channels[place])
            except grpc.RpcError as error:
                return self._silent(*place, error.code(), grpc.StatusCode)

        if not self._channels:
            return [], []
        with ThreadPoolExecutor(min(THREADS_MAX, len(self._channels))) as pool:
            answers = list(pool.map(ask_one, self._channels))
        told = [each for answer in answers if not isinstance(answer, NoServer) for each in answer]
        return told, [answer for answer in answers if isinstance(answer, NoServer)]

    def _silent(self, worker: int, port: int, code: Any, codes: Any) -> NoServer:
        if code is codes.DEADLINE_EXCEEDED:
            return NoServer(worker, port, "took the connection and did not answer", hangs=True)
        if code is codes.UNIMPLEMENTED:
            return NoServer(worker, port, "this version of libtpu does not tell that")
        refused = self._refused.get((worker, port))
        return NoServer(worker, port, f"no server: {refused}" if refused else f"no server ({code.name})")


def read_cores(
    services: Services, targets: Sequence[HostTarget], ports: Ports, *, hlo: bool = False
) -> tuple[list[CoreState], list[NoServer]]:
    """`MetricsServices.read_cores` once."""
    with MetricsServices(services.remote, targets, ports) as opened:
        return opened.read_cores(hlo=hlo)


def silent_workers(workers: Iterable[int], samples: Iterable[ChipSample | CoreState]) -> list[int]:
    """Those of whose chips nothing is known."""
    return sorted(set(workers) - {each.worker for each in samples})
