"""One look at all hosts of a slice: what they, their chips and the programs on them tell, all asked at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

from msgspec import Struct

from tpuctl.hosts.agent import HostAgent, Reply
from tpuctl.hosts.protocol import HostUsage
from tpuctl.hosts.requests import StatusRequest, UsageRequest
from tpuctl.hosts.targets import host_targets
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.telemetry.prometheus import DEFAULT_PORT
from tpuctl.telemetry.read import MetricsServices
from tpuctl.telemetry.sample import DEVICES_PER_CHIP, FIRST_PORT, ChipSample, NoServer

if TYPE_CHECKING:
    from tpuctl.engine.services import Services
    from tpuctl.model.attempts import Attempt
    from tpuctl.model.hosts import HostTarget
    from tpuctl.model.records import SliceRecord

USUAL_EACH = 10
FIRST_S, LATER_S = 20.0, 6.0
"""The first look opens connections and may install the agent. After it, a host that is silent for so long holds
up the others no longer."""


class HostSample(Struct, frozen=True):
    """What one host told. `silent`: services of which nothing is known, where devices are missing; `error`: why
    the host itself told nothing."""

    worker: int
    usage: HostUsage | None = None
    status: WorkerStatus | None = None
    chips: tuple[ChipSample, ...] = ()
    silent: tuple[NoServer, ...] = ()
    figures: Mapping[str, float] = {}
    error: str = ""


class Observer:
    """Looks again and again, through the same connections, until it is closed."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._agent = HostAgent(services.remote, services.agent_source)
        self._metrics: MetricsServices | None = None
        self._looks = 0
        self._telling: set[int] = set()
        self._targets: Sequence[HostTarget] = ()
        self._complete: dict[int, Sequence[int]] = {}
        """Of workers all of whose devices are known: the ports that told them. Others are not asked again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._metrics is not None:
            self._metrics.__exit__()

    def look(self, record: SliceRecord, run: str = "", attempt: Attempt | None = None) -> list[HostSample]:
        """Every worker of the slice, and how the attempt stands there. TpuctlError where the slice has none."""
        targets = host_targets(self._services, record)
        chosen = attempt.attempt_id if attempt is not None else ""
        told, stands = self._ask(targets, run, chosen, FIRST_S if self._metrics is None else LATER_S)
        offer = load_accelerators().of(record.spec.accelerator_type, record.spec.topology)
        per_chip = DEVICES_PER_CHIP.get(offer.generation, 1)
        usual = range(FIRST_PORT, FIRST_PORT + offer.chips_per_host)
        metrics = self._services_of(targets, per_chip)
        ports = {each.worker: self._complete.get(each.worker) or _ports(each, usual) for each in told}
        samples, silent = metrics.read_chips(ports)
        figures = self._read_figures(metrics, told)
        found = []
        for number, each in enumerate(told):
            chips = tuple(chip for chip in samples if chip.worker == each.worker)
            quiet = tuple(one for one in silent if one.worker == each.worker)
            self._complete.pop(each.worker, None)
            if len(chips) >= offer.chips_per_host * per_chip:
                self._complete[each.worker], quiet = sorted({chip.port for chip in chips}), ()
            status = stands[number].value if stands else None
            found.append(
                HostSample(
                    each.worker, each.value, status, chips, quiet, figures.get(each.worker, {}), _error(each)
                )
            )
        return found

    def _ask(
        self, targets: Sequence[HostTarget], run: str, attempt: str, limit_s: float
    ) -> tuple[list[Reply[HostUsage]], list[Reply[WorkerStatus]]]:
        if attempt:
            return self._agent.ask_both(targets, UsageRequest(), StatusRequest(run, attempt), timeout_s=limit_s)
        return self._agent.ask(targets, UsageRequest(), timeout_s=limit_s), []

    def _read_figures(
        self, metrics: MetricsServices, told: Sequence[Reply[HostUsage]]
    ) -> dict[int, dict[str, float]]:
        """Of Orbax and Grain. Ports that programs name are asked at each look; the usual one, which most hosts
        have not got, where it answered, and else now and then."""
        now_and_then = self._looks % USUAL_EACH == 0
        self._looks += 1
        usual = {each.worker: (DEFAULT_PORT,) for each in told if now_and_then or each.worker in self._telling}
        ports = {e.worker: e.value.prometheus or usual.get(e.worker, ()) for e in told if e.value is not None}
        figures = metrics.read_figures(ports)
        self._telling = {worker for worker, each in figures.items() if each}
        return figures

    def _services_of(self, targets: Sequence[HostTarget], per_chip: int) -> MetricsServices:
        """Others where the slice has other hosts than at the last look."""
        if self._metrics is None or self._targets != targets:
            self.__exit__()
            self._metrics, self._targets = (
                MetricsServices(self._services.remote, targets, per_chip=per_chip),
                targets,
            )
            self._complete.clear()
        return self._metrics


def _ports(told: Reply[HostUsage], usual: Sequence[int]) -> Sequence[int]:
    """Those that programs name, else the usual ones; none of a host that does not answer."""
    if told.value is None:
        return ()
    return told.value.ports or usual


def _error(told: Reply[HostUsage]) -> str:
    return "" if told.value is not None else told.message or told.error or "no answer"
