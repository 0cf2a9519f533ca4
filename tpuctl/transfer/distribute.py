"""Brings the contents of a tree to many hosts: only what each lacks, and over this machine's uplink once.

Content is named by its sha256, so nothing is sent twice, and what arrived before an interruption counts. For
more than a few workers one of them gets everything and serves the others inside their network; a worker that
cannot fetch is sent to directly. Who has no time to wait for that leaves it to the hosts (`host_copies`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.engine.ports import Clock, EventSink
from tpuctl.hosts.agent import Asked, HostAgent, Reply
from tpuctl.hosts.commands import SILENCE_S
from tpuctl.hosts.protocol import (
    CopyStatus,
    LacksReply,
    MalformedReplyError,
    PrepareReply,
    parse_as,
)
from tpuctl.model.cloud import HostTarget
from tpuctl.transfer.host_copies import CopyJob, HostCopies, copy_name, inside
from tpuctl.transfer.lacking import (
    ASK_TIMEOUT_S,
    CODE,
    FAN_OUT,
    FLAT_WORKERS,
    SEEDS_TRIED,
    TRANSFER_TIMEOUT_S,
    Spreading,
    Where,
)
from tpuctl.transfer.tree import Content

SERVE_WAIT_S = 20.0


class Distributed(Struct, frozen=True):
    """`failed` holds the answer of every worker that lacks something still; bytes and seconds are ours."""

    failed: Mapping[int, Reply[Any]]
    sent_bytes: int
    relayed: bool
    unfinished: frozenset[int] = frozenset()
    """Workers that lack something because the time was up: the same call goes on there."""
    copying: frozenset[int] = frozenset()
    """Those of them that get it from others meanwhile, or wait for their turn to."""
    prepared: Mapping[int, Reply[PrepareReply]] = {}
    """What workers to which something was sent said to `prepare` behind that."""


def distribute(
    agent: HostAgent,
    targets: Sequence[HostTarget],
    content: Content,
    *,
    clock: Clock,
    emit: EventSink,
    where: Where = CODE,
) -> Distributed:
    """Afterwards every target not in `failed` has all contents of `content`, below ~/.tpuctl or in their place.

    What hosts do for it ends with this call. Raises ValueError for a tree that is none.
    """
    spread = Spreading(agent, targets, content, clock, emit, where=where)
    spread.query_hosts()
    relayed = spread.relay_is_faster() and _ConnectedRelay(spread).relay()
    spread.send_directly()
    return _distributed(spread, relayed, frozenset())


def distribute_in_steps(
    agent: HostAgent,
    targets: Sequence[HostTarget],
    content: Content,
    *,
    clock: Clock,
    emit: EventSink,
    until: float,
    job: CopyJob,
    complete: Sequence[HostTarget] = (),
    where: Where = CODE,
    known: Sequence[Reply[LacksReply]] = (),
    prepare: Asked[PrepareReply] | None = None,
) -> Distributed:
    """Like `distribute`, but nothing more is sent from `until` on (by `clock`), and it returns at most
    OVERTIME_S later. What hosts copy from each other they go on with on their own; the same call later finds
    how far they got. `complete` are hosts of the slice that have all contents already, `known` what some
    lack; `prepare` follows what is sent to a host, in the same call."""
    name = copy_name(job, content.sha256, "fetch")
    spread = Spreading(
        agent,
        targets,
        content,
        clock,
        emit,
        where=where,
        until=until,
        complete=complete,
        copy=name,
        prepare=prepare,
    )
    spread.query_hosts(known)
    copies = HostCopies(spread, job)
    copying = copies.go_on()
    if not spread.late() and not where.hosts_only:
        spread.send_directly(copying)
    return _distributed(spread, copies.begun, copying)


def _distributed(spread: Spreading, relayed: bool, copying: frozenset[int]) -> Distributed:
    unfinished = frozenset(spread.state.unfinished())
    state = spread.state
    return Distributed(
        dict(state.failed), spread.meter.moved, relayed, unfinished, copying & unfinished, dict(state.prepared)
    )


class _ConnectedRelay:
    """Hosts pass contents on while this call lasts: what the user waits for ends with the user."""

    def __init__(self, spread: Spreading) -> None:
        self._spread = spread

    def relay(self) -> bool:
        """Whether it came about."""
        spread = self._spread
        for seed in spread.seeds()[:SEEDS_TRIED]:
            if seed in spread.state.needs and self._relay_from(seed):
                return True
        return False

    def _relay_from(self, seed: int) -> bool:
        """False when this worker could not be given everything; then the next one is tried."""
        spread = self._spread
        if spread.state.needs.get(seed) is None:
            spread.ask([seed], with_tree=True)
        if spread.state.needs.get(seed) is None:
            return False
        unseen = [worker for worker in spread.state.unfinished() if spread.state.needs[worker] is None]
        if unseen:
            self._fetch_round([seed], unseen)
        return self._fill(seed) and self._fetch_in_rounds(seed)

    def _fill(self, seed: int) -> bool:
        """Gives the seed what any of the workers lacks."""
        spread = self._spread
        [answer] = spread.agent.lacks(
            spread.targets([seed]), spread.request(whole=True), timeout_s=ASK_TIMEOUT_S
        )
        lacking = None if answer.value is None else spread.lacking(answer.value)
        if lacking is None or answer.value is None:
            spread.give_up(answer)
            return False
        spread.note_begun(seed, answer.value)
        wanted = frozenset().union(*(spread.state.needs[w] or () for w in spread.state.unfinished())) & lacking
        if not wanted:
            return True
        [reply] = spread.send([seed], {seed: wanted})
        return spread.note_received(reply)

    def _fetch_in_rounds(self, seed: int) -> bool:
        spread = self._spread
        servers = [seed]
        waiting = [worker for worker in spread.state.unfinished() if worker != seed]
        fan_out = FLAT_WORKERS if len(waiting) < FLAT_WORKERS else FAN_OUT
        while waiting:
            room = fan_out * len(servers)
            batch, waiting = waiting[:room], waiting[room:]
            finished = self._fetch_round(servers, batch)
            if not finished and servers == [seed]:
                return False
            servers += finished
        return True

    def _fetch_round(self, servers: Sequence[int], clients: Sequence[int]) -> list[int]:
        """Lets `clients` fetch from `servers`; returns the clients that lack nothing any more."""
        spread = self._spread
        with _Serving(spread.agent, spread.targets(servers), spread.where.area) as serving:
            ready = [worker for worker in servers if worker in serving]
            if not ready:
                return []
            chosen = {worker: ready[index % len(ready)] for index, worker in enumerate(clients)}

            def request(target: HostTarget) -> Mapping[str, Any]:
                server = chosen[target.worker]
                return {**spread.request(), "address": inside(spread.by_worker[server]), **serving[server]}

            replies = spread.agent.converse(
                spread.targets(clients),
                "fetch",
                request,
                lambda worker, report: spread.meter.relayed(worker, parse_as(CopyStatus, report).bytes),
                timeout_s=TRANSFER_TIMEOUT_S,
            )
        return [reply.worker for reply in replies if self._note_fetched(reply)]

    def _note_fetched(self, reply: Reply[Any]) -> bool:
        spread = self._spread
        if reply.value is None:
            if reply.unreached:
                spread.give_up(reply)
            else:
                spread.note_unfetched(reply.worker, reply.message)
            return False
        try:
            lacks = LacksReply.parse(reply.value, reply.worker)
        except MalformedReplyError as error:
            spread.note_unfetched(reply.worker, str(error))
            return False
        spread.state.needs[reply.worker] = spread.lacking(lacks)
        spread.emit_done()
        return spread.state.needs[reply.worker] == frozenset()


class _Serving:
    """Hosts that serve their contents while this context lasts; entering gives by worker what opens them, a
    port and a token."""

    def __init__(self, agent: HostAgent, targets: Sequence[HostTarget], area: str) -> None:
        self._agent = agent
        self._targets = targets
        self._area = area
        self._serving: dict[int, Mapping[str, Any]] = {}
        self._over = threading.Event()
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="tpuctl-serve", daemon=True)

    def __enter__(self) -> Mapping[int, Mapping[str, Any]]:
        self._thread.start()
        self._changed.wait(SERVE_WAIT_S)
        return dict(self._serving)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(SERVE_WAIT_S)

    def _serve(self) -> None:
        def request(target: HostTarget) -> Mapping[str, Any]:
            return {
                "area": self._area,
                "address": inside(target),
                "silence_s": SILENCE_S,
                "deadline_s": TRANSFER_TIMEOUT_S,
            }

        def on_progress(worker: int, report: Mapping[str, Any]) -> None:
            told = parse_as(CopyStatus, report)
            self._serving[worker] = {"port": told.port, "token": told.token}
            if len(self._serving) == len(self._targets):
                self._changed.set()

        try:
            self._agent.converse(
                self._targets,
                "serve",
                request,
                on_progress,
                hold=True,
                timeout_s=TRANSFER_TIMEOUT_S,
                should_stop=self._over.is_set,
            )
        finally:
            self._changed.set()
