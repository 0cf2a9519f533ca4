"""Readiness probe: do the hosts of a slice answer, with which keys, and if not, is it them or this machine?"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.events import Warn
from tpuctl.engine.services import Services
from tpuctl.errors import DeniedError, InvalidRequestError, NotFoundError
from tpuctl.hosts.agent import HostAgent, Reply
from tpuctl.hosts.deadline import TimedRemote
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.text import counted
from tpuctl.model import timeouts
from tpuctl.model.cloud import Api, Endpoint, FailureKind, GuestHostKey, HostTarget, NodeInfo
from tpuctl.model.records import Incarnation, SliceRecord, SliceState, Worker
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import readable_slices
from tpuctl.transfer.prepare import CLOSED_TO_US

SAMPLED_SLICES = 5
"""Of how many other slices one host each is tried before this machine takes itself for cut off."""


class HostAnswers(Struct, frozen=True):
    """How many workers answered the readiness probe, and what is wrong with the others, in words."""

    answered: int
    asked: int
    trouble: str
    closed: bool = False
    """Some of those others do answer, but not to this machine."""
    refused: bool = False
    """Of those, some refused this machine's key."""
    silent: tuple[int, ...] = ()
    """Those others."""
    unfit: bool = False
    """They answer over SSH, and the agent cannot work there."""
    numbers: tuple[str | None, ...] = ()
    """What hosts of Compute Engine say that they are, in the order of the workers; None for nothing."""

    @property
    def all_well(self) -> bool:
        return self.answered == self.asked


def probe_workers(services: Services, record: SliceRecord, until: float | None = None) -> HostAnswers:
    """Asks the agent of every worker for an answer. With `until`, by this machine's clock, who has not answered
    by then is silent; an agent that was put on a host meanwhile stays."""
    remote = services.remote if until is None else TimedRemote(services.remote, services.clock, until)
    agent = HostAgent(remote, services.agent_source)
    request = {"number": True} if record.spec.api is Api.COMPUTE else {}
    return judge_answers(agent.call(host_targets(services, record), "hello", request))


def judge_answers(replies: Sequence[Reply[Any]]) -> HostAnswers:
    """What the answers of all workers to the readiness probe amount to."""
    silent = [reply for reply in replies if reply.value is None]
    if not silent:
        numbers = tuple((reply.value or {}).get("number") for reply in replies)
        return HostAnswers(len(replies), len(replies), "", numbers=numbers)
    first = silent[0]
    why = first.message or first.result.detail or str(first.result.failure or first.result.exit_status)
    where = f"{len(silent)} of {counted(len(replies), 'worker')} (worker {first.worker}: {why})"
    # Whoever refuses to begin the agent is no host that is silent: its disk is full, or its home is not ours.
    unfit = [reply for reply in silent if reply.result.failure is None]
    trouble = f"no agent on {where}" if len(unfit) == len(silent) else f"no SSH to {where}"
    closed = any(reply.result.failure in CLOSED_TO_US for reply in silent)
    refused = any(reply.result.failure is FailureKind.AUTH for reply in silent)
    workers = tuple(reply.worker for reply in silent)
    answered = len(replies) - len(silent)
    return HostAnswers(answered, len(replies), trouble, closed, refused, workers, len(unfit) == len(silent))


def number_workers(workers: Sequence[Worker], numbers: Sequence[str | None]) -> tuple[Worker, ...] | str:
    """The workers by the numbers that their hosts were given, which alone decide: programs go by them, and the
    order of a list proves nothing. In words what is wrong where these do not fit together. Pure."""
    if len(workers) == 1 and numbers[0] is None:
        return tuple(workers)  # an instance without a group may not be told
    named: dict[int, Worker] = {}
    for worker, number in zip(workers, numbers, strict=True):
        host = _host(worker)
        if number is None:
            return f"{host} does not say its worker number"
        if not (number.isascii() and number.isdigit()) or int(number) >= len(workers):
            return f"{host} says that it is worker {number} of {counted(len(workers), 'host')}"
        if int(number) in named:
            return f"{_host(named[int(number)])} and {host} both say that they are worker {number}"
        named[int(number)] = worker
    return tuple(named[number] for number in sorted(named))


def _host(worker: Worker) -> str:
    return worker.endpoint.instance or worker.endpoint.internal_ip


def position_in(node: NodeInfo, worker: int, incarnation: Incarnation) -> int | None:
    """Where a worker is among the endpoints of `node`, by which ports count; None where it is not there."""
    if node.api is Api.TPU:
        return worker
    names = [endpoint.instance for endpoint in node.endpoints]
    own = incarnation.workers[worker].endpoint.instance
    return names.index(own) if own in names else None


class PartitionCheck:
    """Whether this machine is cut off from hosts: asked once per pass, of hosts of several slices."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._seen: set[str] = set()
        self._asked = False

    def another(self, slice_name: str, timeout_s: float = 10.0) -> bool:
        """Whether a host of another slice than `slice_name` answers on its SSH port right now."""
        if not self._seen - {slice_name} and not self._asked:
            self._asked = True
            self._seen |= {name for name, answers in self._ask(timeout_s).items() if answers}
        return bool(self._seen - {slice_name})

    @property
    def cut_off(self) -> bool:
        """It was asked, and nobody answered."""
        return self._asked and not self._seen

    def saw(self, slice_name: str) -> None:
        """A host of `slice_name` has just answered."""
        self._seen.add(slice_name)

    def _ask(self, timeout_s: float) -> dict[str, bool]:
        targets: list[HostTarget] = []
        for record in readable_slices(self._services)[0]:
            pinned = record.incarnation is not None and record.incarnation.workers
            if record.state is SliceState.READY and pinned and len(targets) <= SAMPLED_SLICES:
                targets.append(host_targets(self._services, record)[0])
        keys = self._services.remote.read_host_keys(targets, timeout_s=timeout_s) if targets else []
        return {target.slice_name: key is not None for target, key in zip(targets, keys, strict=True)}


def find_workers(services: Services, record: SliceRecord, node: NodeInfo) -> tuple[Worker, ...] | str:
    """Addresses and host keys of all workers of `node`; what is still being waited for otherwise."""
    incarnation = record.incarnation
    if incarnation is None or not node.endpoints:
        return "addresses of the workers"
    if incarnation.workers and incarnation.node_uid == node.uid:
        current = tuple(worker.endpoint for worker in incarnation.workers)
        same = sorted(current, key=_by_name) == sorted(node.endpoints, key=_by_name)
        if current == node.endpoints or (same and node.api is Api.COMPUTE):
            return incarnation.workers
    try:
        keys = published_keys(services, node)
    except NotFoundError:
        return "a second read: the node was there a moment ago"  # taken away between two reads
    if not keys and services.trust_first_use:
        keys = _keys_at_first_use(services, record, incarnation, node)
    missing = [index for index in range(len(node.endpoints)) if index not in keys]
    if missing:
        return f"host keys of {counted(len(missing), 'worker')}"
    return tuple(
        Worker(endpoint, keys[index].public_key, keys[index].hostname)
        for index, endpoint in enumerate(node.endpoints)
    )


def _by_name(endpoint: Endpoint) -> tuple[str, str]:
    return endpoint.instance, endpoint.internal_ip


def published_keys(services: Services, node: NodeInfo) -> dict[int, GuestHostKey]:
    """The host keys that the cloud publishes, by worker; those of a multislice are counted through.

    None where they are turned off, absent, or not for this caller to read: the answer is a refusal then, which
    gcloud takes for none, too. Raises DeniedError for credentials that are refused altogether, and
    NotFoundError when the node itself is gone: its addresses may be somebody else's by now.
    """
    keys: dict[int, GuestHostKey] = {}
    first = 0
    for part in node.parts or (node,):
        try:
            found = services.tpus(part.api).list_host_keys(part.zone, part.name)
        except (NotFoundError, DeniedError, InvalidRequestError) as error:
            if error.details.get("status") == HTTPStatus.UNAUTHORIZED:
                raise
            again = services.tpus(part.api).find_node(part.zone, part.name)
            if again is None or again.uid != part.uid:
                raise NotFoundError(f"node {part.name} in {part.zone} is not there any more") from error
            found = ()
        for key in found:
            keys[first + key.worker] = replace(key, worker=first + key.worker)
        first += len(part.endpoints)
    return keys


def _keys_at_first_use(
    services: Services, record: SliceRecord, incarnation: Incarnation, node: NodeInfo
) -> dict[int, GuestHostKey]:
    """The keys that hosts show, where the cloud has had time to publish them and did not."""
    since = incarnation.cloud_ready_at
    if since is None or services.store.now() - since < timeouts.GUEST_ATTRIBUTES_S:
        return {}
    unproven = replace(incarnation, workers=tuple(Worker(endpoint, "") for endpoint in node.endpoints))
    targets = host_targets(services, replace(record, incarnation=unproven))
    shown = enumerate(services.remote.read_host_keys(targets))
    keys = {index: GuestHostKey(index, key) for index, key in shown if key is not None}
    if len(keys) == len(targets):
        text = (
            f"the cloud publishes no host keys of {node.name}: the keys that its hosts show are believed "
            "now, unproven, and pinned (setting host_keys: first-use)"
        )
        name = incarnation.cloud_name
        record_decision(services, record.key, "host-keys-first-use", text, incarnation=name)
        services.emit(Warn(record.name, text))
    return keys
