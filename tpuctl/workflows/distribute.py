"""Brings the contents of a tree to many hosts: only what each lacks, and over this machine's uplink once.

Content is named by its sha256, so nothing is sent twice, and what arrived before an interruption counts. For
more than a few workers one of them gets everything and serves the others inside their network; a worker that
cannot fetch is sent to directly.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpuctl.core.host_commands import SILENCE_S
from tpuctl.core.host_protocol import LacksReply
from tpuctl.core.model import FailureKind, HostTarget
from tpuctl.core.tree import Blob, Content, list_blobs, parse_tree, select_lacking
from tpuctl.ports import Clock, EventSink
from tpuctl.workflows.events import Note
from tpuctl.workflows.host_helper import Answer, HelperReply, HostHelper
from tpuctl.workflows.meter import Meter

FEW_WORKERS = 4
SMALL_BYTES = 1 << 20
"""Up to so many workers or bytes, sending to each of them directly is faster than setting up a relay."""
INLINE_TREE = 16 << 10
"""A list of files up to this size goes to every worker directly."""
FLAT_WORKERS = 64
"""Up to so many workers one of them serves all others; beyond, those that are done serve too."""
FAN_OUT = 16
SEEDS_TRIED = 3
TRANSFER_TIMEOUT_S = 3600.0
ASK_TIMEOUT_S = 60.0
PIECE = 1 << 18
OVERTIME_S = 4.0
"""For what is in the pipes when the time is up."""
SERVE_WAIT_S = 20.0


@dataclass(frozen=True)
class Where:
    """Where contents go on the hosts. With `destination` a file that lies there already need not travel."""

    area: str
    destination: str | None = None
    names: tuple[str, ...] = ()


CODE = Where("blobs")


@dataclass(frozen=True)
class Distributed:
    """`failed` holds the answer of every worker that lacks something still; bytes and seconds are ours."""

    failed: Mapping[int, HelperReply]
    sent_bytes: int
    relayed: bool
    unfinished: frozenset[int] = frozenset()
    """Workers that lack something because the time was up: the same call goes on there."""


@dataclass
class _State:
    """What is known about each worker: what it lacks (None: it has not seen the tree), why it was given up."""

    needs: dict[int, frozenset[Blob] | None] = field(default_factory=dict)
    begun: dict[int, Mapping[Blob, int]] = field(default_factory=dict)
    failed: dict[int, HelperReply] = field(default_factory=dict)
    relayed: bool = False

    def unfinished(self) -> list[int]:
        return [worker for worker, need in self.needs.items() if need != frozenset()]


def distribute(
    helper: HostHelper,
    targets: Sequence[HostTarget],
    content: Content,
    *,
    clock: Clock,
    emit: EventSink,
    where: Where = CODE,
    until: float | None = None,
) -> Distributed:
    """Afterwards every target not in `failed` has all contents of `content`, below ~/.tpuctl or in their place.

    With `until` (by `clock`) nothing more is sent from then on, and what is left is `unfinished`; it returns at
    most OVERTIME_S later. Raises ValueError for a tree that is none.
    """
    return _Distribution(helper, targets, content, clock, emit, where, until).run()


class _Distribution:
    def __init__(
        self,
        helper: HostHelper,
        targets: Sequence[HostTarget],
        content: Content,
        clock: Clock,
        emit: EventSink,
        where: Where,
        until: float | None,
    ) -> None:
        self._helper = helper
        self._clock = clock
        self._until = until
        self._by_worker = {target.worker: target for target in targets}
        self._content = content
        self._blobs = list_blobs(parse_tree(content.tree))
        self._where = where
        self._state = _State()
        self._meter = Meter(clock, emit, next(iter(targets)).slice_name if targets else "", len(targets))

    def run(self) -> Distributed:
        everyone = list(self._by_worker)
        self._ask(everyone)
        new = [worker for worker in everyone if self._state.needs.get(worker, frozenset()) is None]
        if len(new) <= FEW_WORKERS or len(self._content.tree) <= INLINE_TREE:
            self._ask(new, with_tree=True)
        if self._relay_pays():
            self._relay()
        if not self._late():
            self._send_directly()
        unfinished = frozenset(self._state.unfinished())
        return Distributed(dict(self._state.failed), self._meter.moved, self._state.relayed, unfinished)

    def _late(self) -> bool:
        return self._until is not None and self._clock.now() >= self._until

    def _limited(self, timeout_s: float) -> float:
        """What is left of the time, if that is less."""
        if self._until is None:
            return timeout_s
        return max(1.0, min(timeout_s, self._until + OVERTIME_S - self._clock.now()))

    def _cut_off(self, reply: HelperReply) -> bool:
        """It was this side that ended the call, because the time was up: what arrived counts."""
        return self._late() and (reply.result.failure is FailureKind.TIMEOUT or reply.error == "bad-payload")

    # ------------------------------------------------------------ asking

    def _request(self, *, whole: bool = False) -> dict[str, Any]:
        """What all verbs are told; `whole` disregards what lies at the destination."""
        request: dict[str, Any] = {"area": self._where.area, "tree": self._content.sha256}
        if self._where.destination is not None and not whole:
            request.update(destination=self._where.destination, names=list(self._where.names))
        return request

    def _targets(self, workers: Iterable[int]) -> list[HostTarget]:
        return [self._by_worker[worker] for worker in workers]

    def _ask(self, workers: Sequence[int], *, with_tree: bool = False) -> None:
        if workers:
            tree = self._content.tree if with_tree else None
            timeout_s = self._limited(ASK_TIMEOUT_S)
            targets = self._targets(workers)
            for answer in self._helper.lacks(targets, self._request(), tree=tree, timeout_s=timeout_s):
                self._note_answer(answer)
            if tree is not None:
                self._meter.add(len(tree) * len(workers))
            self._tell_done()

    def _note_answer(self, answer: Answer[LacksReply]) -> None:
        if answer.value is None:
            if self._cut_off(answer.reply):
                self._state.needs.setdefault(answer.worker, None)
            else:
                self._give_up(answer.reply)
        else:
            self._note_lacking(answer.worker, answer.value)

    def _note_lacking(self, worker: int, reply: LacksReply) -> None:
        self._state.needs[worker] = self._lacking(reply)
        self._note_begun(worker, reply)

    def _note_begun(self, worker: int, reply: LacksReply) -> None:
        count = len(self._blobs)
        self._state.begun[worker] = {self._blobs[n]: came for n, came in reply.begun.items() if 0 <= n < count}

    def _lacking(self, reply: LacksReply) -> frozenset[Blob] | None:
        return select_lacking(self._blobs, reply.bits) if reply.has_tree else None

    def _tell_done(self) -> None:
        lacking = len(self._state.unfinished()) + len(self._state.failed)
        self._meter.done(len(self._by_worker) - lacking)

    def _give_up(self, reply: HelperReply) -> None:
        self._state.needs.pop(reply.worker, None)
        self._state.failed[reply.worker] = reply

    # ------------------------------------------------------------ sending

    def _send(self, workers: Sequence[int], needs: Mapping[int, frozenset[Blob]]) -> list[HelperReply]:
        """Sends each worker its own contents over its own connection."""

        def wanted(target: HostTarget) -> list[Blob]:
            return [blob for blob in self._blobs if blob in needs[target.worker]]

        def come(worker: int, blob: Blob) -> int:
            return min(blob.size, max(0, self._state.begun.get(worker, {}).get(blob, 0)))

        self._meter.expect(sum(blob.size - come(worker, blob) for worker in workers for blob in needs[worker]))
        return self._helper.call(
            self._targets(workers),
            "receive",
            lambda target: {
                "area": self._where.area,
                "blobs": [[blob.sha256, blob.size, come(target.worker, blob)] for blob in wanted(target)],
            },
            payload=lambda target: self._pieces((b, come(target.worker, b)) for b in wanted(target)),
            timeout_s=self._limited(TRANSFER_TIMEOUT_S),
        )

    def _pieces(self, wanted: Iterable[tuple[Blob, int]]) -> Iterator[bytes]:
        """The rest of each content behind what has come of it, until the time is up."""
        for blob, come in wanted:
            at = 0
            for data in self._content.read(blob.sha256):
                for start in range(0, len(data), PIECE):
                    piece = data[start : start + PIECE][: blob.size - at]
                    at += len(piece)
                    piece = piece[max(0, len(piece) - max(0, at - come)) :]
                    if not piece:
                        continue
                    if self._late():
                        return
                    self._meter.add(len(piece))
                    yield piece
            if at < blob.size:
                return  # the file became shorter meanwhile; the host tells that it is not what was announced

    def _send_directly(self) -> None:
        self._ask([w for w in self._state.unfinished() if self._state.needs[w] is None], with_tree=True)
        needs = {worker: need for worker, need in self._state.needs.items() if need}
        for reply in self._send(list(needs), needs) if needs else []:
            self._note_received(reply)

    def _note_received(self, reply: HelperReply) -> bool:
        if reply.data is None:
            if not self._cut_off(reply):
                self._give_up(reply)
            return False
        self._state.needs[reply.worker] = frozenset()
        self._tell_done()
        return True

    # ------------------------------------------------------------ from host to host

    def _relay_pays(self) -> bool:
        unfinished = self._state.unfinished()
        if len(unfinished) <= FEW_WORKERS:
            return False
        unseen = any(self._state.needs[worker] is None for worker in unfinished)
        wanted: set[Blob] = set(self._blobs) if unseen else set()
        for worker in unfinished:
            wanted |= self._state.needs[worker] or frozenset()
        return sum(blob.size for blob in wanted) + (len(self._content.tree) if unseen else 0) > SMALL_BYTES

    def _relay(self) -> None:
        for seed in self._seeds()[:SEEDS_TRIED]:
            if self._late():
                return
            if seed in self._state.needs and self._relay_from(seed):
                self._state.relayed = True
                return

    def _seeds(self) -> list[int]:
        """Those first that lack least, so that one which was begun with is gone on with."""

        def missing(worker: int) -> int:
            begun = self._state.begun.get(worker, {})
            needs = self._state.needs.get(worker)
            blobs = self._blobs if needs is None else needs
            return sum(blob.size - begun.get(blob, 0) for blob in blobs)

        return sorted(self._state.unfinished(), key=lambda worker: (missing(worker), worker))

    def _relay_from(self, seed: int) -> bool:
        """False when this worker could not be given everything; then the next one is tried."""
        if self._state.needs.get(seed) is None:
            self._ask([seed], with_tree=True)
        if self._state.needs.get(seed) is None:
            return False
        unseen = [worker for worker in self._state.unfinished() if self._state.needs[worker] is None]
        if unseen:
            self._fetch_round([seed], unseen)
        return self._fill(seed) and self._fetch_in_rounds(seed)

    def _fill(self, seed: int) -> bool:
        """Gives the seed what any of the workers lacks."""
        timeout_s = self._limited(ASK_TIMEOUT_S)
        [answer] = self._helper.lacks(self._targets([seed]), self._request(whole=True), timeout_s=timeout_s)
        lacking = None if answer.value is None else self._lacking(answer.value)
        if lacking is None or answer.value is None:
            if not self._cut_off(answer.reply):
                self._give_up(answer.reply)
            return False
        self._note_begun(seed, answer.value)
        wanted = frozenset().union(*(self._state.needs[w] or () for w in self._state.unfinished())) & lacking
        if not wanted:
            return True
        [reply] = self._send([seed], {seed: wanted})
        return self._note_received(reply)

    def _fetch_in_rounds(self, seed: int) -> bool:
        servers = [seed]
        waiting = [worker for worker in self._state.unfinished() if worker != seed]
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
        token = secrets.token_hex(32)
        wait_s = self._limited(SERVE_WAIT_S)
        with _Serving(self._helper, self._targets(servers), self._where.area, token, wait_s) as ports:
            ready = [worker for worker in servers if worker in ports]
            if not ready:
                return []
            chosen = {worker: ready[index % len(ready)] for index, worker in enumerate(clients)}

            def request(target: HostTarget) -> Mapping[str, Any]:
                server = chosen[target.worker]
                address = _inside(self._by_worker[server])
                return {**self._request(), "address": address, "port": ports[server], "token": token}

            replies = self._helper.converse(
                self._targets(clients),
                "fetch",
                request,
                lambda worker, report: self._meter.relayed(worker, int(report.get("bytes", 0))),
                timeout_s=self._limited(TRANSFER_TIMEOUT_S),
            )
        return [reply.worker for reply in replies if self._note_fetched(reply)]

    def _note_fetched(self, reply: HelperReply) -> bool:
        if reply.data is None:
            if self._cut_off(reply):
                return False
            if reply.unreached:
                self._give_up(reply)
            else:
                text = f"worker {reply.worker} could not fetch from its neighbour: {reply.message}"
                self._meter.emit(Note(self._by_worker[reply.worker].slice_name, text))
            return False
        lacks = LacksReply(bool(reply.data.get("tree")), str(reply.data.get("lacking", "")))
        self._state.needs[reply.worker] = self._lacking(lacks)
        self._tell_done()
        return self._state.needs[reply.worker] == frozenset()


def _inside(target: HostTarget) -> str:
    return target.internal_ip or target.address


class _Serving:
    """Hosts that serve their contents while this context lasts; entering gives the ports by worker."""

    def __init__(
        self, helper: HostHelper, targets: Sequence[HostTarget], area: str, token: str, wait_s: float
    ) -> None:
        self._wait_s = wait_s
        self._helper = helper
        self._targets = targets
        self._area = area
        self._token = token
        self._ports: dict[int, int] = {}
        self._over = threading.Event()
        self._changed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="tpuctl-serve", daemon=True)

    def __enter__(self) -> Mapping[int, int]:
        self._thread.start()
        self._changed.wait(self._wait_s)
        return dict(self._ports)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(SERVE_WAIT_S)

    def _serve(self) -> None:
        def request(target: HostTarget) -> Mapping[str, Any]:
            return {
                "area": self._area,
                "address": _inside(target),
                "token": self._token,
                "silence_s": SILENCE_S,
                "deadline_s": TRANSFER_TIMEOUT_S,
            }

        def on_progress(worker: int, report: Mapping[str, Any]) -> None:
            self._ports[worker] = int(report.get("port", 0))
            if len(self._ports) == len(self._targets):
                self._changed.set()

        try:
            self._helper.converse(
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
