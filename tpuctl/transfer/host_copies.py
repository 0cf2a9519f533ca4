"""Copies from host to host that go on without us, each a supervised job of the agent; later steps observe it.

Nothing is remembered here. How a copy stands, and on which port and with which secret a host serves, the hosts
themselves say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.hosts.protocol import CopyStatus, WorkerState
from tpuctl.hosts.requests import CopyName, CopyRequest, StopRequest
from tpuctl.model.cloud import HostTarget
from tpuctl.transfer.lacking import (
    ASK_TIMEOUT_S,
    FAN_OUT,
    FLAT_WORKERS,
    SEEDS_TRIED,
    TRANSFER_TIMEOUT_S,
    Spreading,
)
from tpuctl.transfer.tree import Blob

COPY_RUN = "copy-"
"""Begins the name under which the hosts keep such a job, beside those of runs."""
COPY_MAX_S = 900
"""A copy that takes longer hangs and ends; its worker is sent to directly."""
SERVE_IDLE_S = 60
"""A host that nobody has asked for anything for so long stops serving: nobody needs to tell it to."""
PAUSE_S = 0.2
"""Between two looks at copies, while there is time to look."""
PATIENCE_S = 4.0
"""So long a host waits for the end of its copy before it answers, so that it need not be asked every second."""
GRACE_S = 2.0
COMMANDS = f"{COPY_RUN}command"
"""The run to which all copies belong for which a command waits."""
_NO_FENCE = 0
_NOT_BEGUN = CopyStatus(WorkerState.ABSENT)
Source = tuple[HostTarget, CopyStatus]
"""A host that serves, and what opens it."""


class CopyJob(Struct, frozen=True):
    """Whose copies they are: one attempt of a run, the installation of its environment, or one command. Each
    copy `lasts_s` at most."""

    owner: str
    fence: int
    lasts_s: int = COPY_MAX_S


def command_job(tree: str) -> CopyJob:
    """The copies of one command, which ends them. Those of one that was killed are found by the same again.
    Two commands with one tree at the same time share them: what the first to end stops, the other sends."""
    return CopyJob(tree[:16], _NO_FENCE, int(TRANSFER_TIMEOUT_S))


def copy_name(job: CopyJob, tree: str, verb: str) -> CopyName:
    """What hosts call the copy of a tree."""
    run = COMMANDS if job.fence == _NO_FENCE else f"{COPY_RUN}{tree[:16]}"
    return CopyName(run, f"{job.owner}-{verb}")


def is_copy(run: str) -> bool:
    """Whether what a host calls a run is a copy."""
    return run.startswith(COPY_RUN)


def is_copy_of(owner: str, run: str, attempt: str) -> bool:
    """Whether it is one that was begun for `owner`."""
    return is_copy(run) and attempt in {f"{owner}-{verb}" for verb in ("serve", "fetch")}


def inside(target: HostTarget) -> str:
    """The address at which other hosts of its network find it."""
    return target.internal_ip or target.address


class HostCopies:
    """What one step does for the copies of one tree."""

    def __init__(self, spread: Spreading, job: CopyJob) -> None:
        self._spread = spread
        self._job = job
        self._asked: dict[str, dict[int, HostTarget]] = {"fetch": {}, "serve": {}}
        self._source: dict[int, int] = {}
        self._got: dict[int, frozenset[Blob] | None] = {}
        self.begun = False
        """Whether any copy was under way."""

    def go_on(self) -> frozenset[int]:
        """Has hosts copy from those that have everything, and watches while there is time and nothing else to
        do. Returns those that are at it then, or wait for their turn."""
        spread = self._spread
        while True:
            copying = frozenset(self._begin())
            self.begun = self.begun or bool(copying)
            if not copying or spread.late() or not copying.issuperset(spread.state.unfinished()):
                return copying
            spread.clock.sleep(PAUSE_S)
            spread.ask(sorted(copying), patience_s=PATIENCE_S)

    def _begin(self) -> list[int]:
        """Begins what can be begun now. A worker whose copy has ended and that lacks something all the same is
        none of those that copy."""
        going = [worker for worker in self._spread.state.unfinished() if self._status(worker).going]
        fresh = self._fresh()
        if not fresh or self._spread.late() or not (self.begun or going or self._spread.relay_is_faster()):
            return going
        hosts = self._hosts()
        fresh = self._fresh()
        wanted = len(fresh) + len(going)
        fan_out = FLAT_WORKERS if wanted <= FLAT_WORKERS else FAN_OUT
        count = -(-wanted // fan_out)
        if hosts and fan_out * min(count, len(hosts)) <= len(going):
            return [*going, *fresh]
        sources = self._serve(hosts, count) if fresh else []
        if not sources:
            return going
        room = max(0, fan_out * len(sources) - len(going))
        return [*going, *self._fetch(fresh[:room], sources, going), *fresh[room:]]

    def _fresh(self) -> list[int]:
        """Workers that lack something and have not tried to copy it."""
        idle = {WorkerState.ABSENT, WorkerState.PREPARED}
        return [worker for worker in self._spread.state.unfinished() if self._status(worker).state in idle]

    def _status(self, worker: int) -> CopyStatus:
        return self._spread.state.copies.get(worker, _NOT_BEGUN)

    def _request(self, verb: str, address: str) -> CopyRequest:
        tree, job, area = self._spread.content.sha256, self._job, self._spread.where.area
        name = copy_name(job, tree, verb)
        return CopyRequest(name.run, name.attempt, job.fence, verb, area, tree, job.lasts_s, address)

    def _fetch(self, workers: Sequence[int], sources: Sequence[Source], going: Sequence[int]) -> list[int]:
        """Lets each worker copy from that of `sources` from which the fewest do; those that have begun."""
        if not workers:
            return []
        spread = self._spread
        clients = Counter(self._source[worker] for worker in going if worker in self._source)
        chosen: dict[int, Source] = {}
        for worker in workers:
            chosen[worker] = min(sources, key=lambda source: clients[source[0].worker])
            self._source[worker] = chosen[worker][0].worker
            clients[self._source[worker]] += 1
            self._got[worker] = spread.state.needs[worker]

        def request(target: HostTarget) -> CopyRequest:
            source, serving = chosen[target.worker]
            return replace(
                self._request("fetch", inside(source)),
                port=serving.port,
                token=serving.token,
                destination=spread.where.destination,
                names=tuple(spread.where.names),
                anew=self._job.fence == _NO_FENCE,
            )

        begun = []
        timeout_s = spread.limited(ASK_TIMEOUT_S)
        targets = spread.targets(workers)
        self._asked["fetch"].update((target.worker, target) for target in targets)
        for answer in spread.agent.ask(targets, request, timeout_s=timeout_s):
            if answer.value is not None:
                spread.state.copies[answer.worker] = answer.value
                begun.append(answer.worker)
            elif not spread.cut_off(answer):
                spread.give_up(answer)
        return begun

    def _hosts(self) -> list[HostTarget]:
        """Hosts that are complete, or one that is made so now."""
        spread = self._spread
        wanted = spread.lacking_of(self._fresh())
        having = [worker for worker in spread.state.finished() if self._has(worker, wanted)]
        hosts = {**spread.complete, **{worker: spread.by_worker[worker] for worker in having}}
        return [hosts[worker] for worker in sorted(hosts)] or spread.targets(self._complete_one())

    def _serve(self, hosts: Sequence[HostTarget], count: int) -> list[Source]:
        """Has `count` of the hosts serve, or go on with it: asked before each use, as each ends by itself."""

        def request(target: HostTarget) -> CopyRequest:
            return replace(self._request("serve", inside(target)), idle_s=SERVE_IDLE_S, anew=True)

        timeout_s = self._spread.limited(ASK_TIMEOUT_S)
        for some in (hosts[:count], hosts[count : count + SEEDS_TRIED]):
            self._asked["serve"].update((target.worker, target) for target in some)
            answers = zip(some, self._spread.agent.ask(some, request, timeout_s=timeout_s), strict=True)
            values = [(host, said.value) for host, said in answers if said.value is not None]
            serving = [(host, value) for host, value in values if value.going and value.port]
            if serving:
                return serving
        return []

    def _has(self, worker: int, wanted: frozenset[Blob]) -> bool:
        """Whether a worker that lacks nothing can serve what is wanted: it cannot serve what lay in its place
        already, so what counts is what came to it."""
        spread = self._spread
        if spread.where.destination is None:
            return True
        got = self._got.get(worker, frozenset())
        if got is None:  # it had not seen the tree, and has looked itself
            return self._status(worker).bytes >= sum(blob.size for blob in spread.blobs)
        return got >= wanted

    def _complete_one(self) -> list[int]:
        """Sends one worker all that any of them lacks, as far as the time allows; that worker."""
        spread = self._spread
        lacked = spread.lacking_of(spread.state.unfinished())
        idle = [worker for worker in spread.seeds() if not self._status(worker).going]
        for seed in idle[:SEEDS_TRIED]:
            if spread.late():
                break
            if spread.state.needs.get(seed) is None:
                spread.ask([seed], with_tree=True)
            need = spread.state.needs.get(seed)
            if need is not None and spread.where.destination is not None:
                need = spread.lacking_to_serve(seed)
            if need is not None and (not need or spread.note_received(spread.send([seed], {seed: need})[0])):
                self._got[seed] = lacked
                return [seed]
        return []

    def stop(self) -> None:
        """Ends the copies of this job, also those that were asked for without an answer so far."""
        spread = self._spread
        going = {w: spread.by_worker[w] for w, copy in spread.state.copies.items() if copy.going}
        asked = {w: host for w, host in self._asked["fetch"].items() if not self._status(w).state.final}
        for verb, hosts in (("fetch", going | asked), ("serve", self._asked["serve"])):
            name = copy_name(self._job, spread.content.sha256, verb)
            spread.agent.ask(list(hosts.values()), StopRequest(name.run, name.attempt, GRACE_S))
