"""What each of many hosts lacks of a tree, and sending it to them over this machine's uplink.

Call `distribute`. Code that copies from host to host uses `Spreading`, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from tpuctl.engine.events import Note
from tpuctl.engine.ports import Clock, EventSink
from tpuctl.hosts.agent import Asked, HostAgent, Payload, Reply
from tpuctl.hosts.protocol import CopyStatus, LacksReply, PrepareReply, WorkerState
from tpuctl.hosts.requests import AgentRequest, CopyName, LacksRequest, ReceiveRequest
from tpuctl.model.cloud import FailureKind, HostTarget
from tpuctl.transfer.frames import render_contents
from tpuctl.transfer.progress import TransferProgress
from tpuctl.transfer.tree import Blob, Content, list_blobs, parse_tree, select_lacking

R = TypeVar("R")
FEW_WORKERS = 4
SMALL_BYTES = 1 << 20
"""Up to so many workers or bytes, sending to each of them directly is faster than setting up a relay."""
INLINE_TREE = 16 << 10
"""A list of files up to this size, and all code that is not larger together with its list, goes to every worker
directly."""
FLAT_WORKERS = 64
"""Up to so many workers one of them serves all others; beyond, those that are done serve too."""
FAN_OUT = 16
"""Beyond that, so many fetch from one at a time, and then serve: 16 have it after one round, 288 after two."""
SEEDS_TRIED = 3
"""One host may be sick. Where three cannot serve it is the network, and this machine sends to each itself."""
TRANSFER_TIMEOUT_S = 3600.0
ASK_TIMEOUT_S = 60.0
SILENCE_S = 60.0
"""A host that copies and has not answered for so long, though it was asked again, is sent to directly."""
OVERTIME_S = 4.0
"""For what is in the pipes when the time is up."""


PASSING = frozenset({FailureKind.CONNECT, FailureKind.LOST, FailureKind.TIMEOUT, FailureKind.AUTH})
"""Failures of a connection, which say nothing of what the host does. One that is cut during login looks as if
the host had refused the key."""


class Where(Struct, frozen=True):
    """Where contents go on the hosts. With `destination` a file that lies there already need not travel. With
    `hosts_only` hosts alone have them, not this machine."""

    area: str
    destination: str | None = None
    names: tuple[str, ...] = ()
    hosts_only: bool = False


CODE = Where("blobs")


class State(Struct):
    """What is known about each worker: what it lacks (None: it has not seen the tree), why it was given up, how
    the copy stands that it makes by itself, and what it said to `prepare` behind the contents."""

    needs: dict[int, frozenset[Blob] | None] = field(default_factory=dict)
    begun: dict[int, Mapping[Blob, int]] = field(default_factory=dict)
    copies: dict[int, CopyStatus] = field(default_factory=dict)
    failed: dict[int, Reply[Any]] = field(default_factory=dict)
    prepared: dict[int, Reply[PrepareReply]] = field(default_factory=dict)

    def unfinished(self) -> list[int]:
        return [worker for worker, need in self.needs.items() if need != frozenset()]

    def finished(self) -> list[int]:
        return [worker for worker, need in self.needs.items() if need == frozenset()]


class Spreading:
    """One tree on its way to `targets`, until `until` by `clock`.

    `complete` are hosts of the same slice that have all contents already; `copy` is what hosts call the copies
    that they make by themselves, if they do; `prepare` follows what is sent to a host. Raises ValueError for a
    tree that is none.
    """

    def __init__(
        self,
        agent: HostAgent,
        targets: Sequence[HostTarget],
        content: Content,
        clock: Clock,
        emit: EventSink,
        *,
        where: Where = CODE,
        until: float | None = None,
        complete: Sequence[HostTarget] = (),
        copy: CopyName | None = None,
        prepare: Asked[PrepareReply] | None = None,
    ) -> None:
        self.agent = agent
        self.clock = clock
        self.by_worker = {target.worker: target for target in targets}
        self.complete = {target.worker: target for target in complete}
        self.content = content
        self.where = where
        self.state = State()
        self.meter = TransferProgress(
            clock, emit, next(iter(targets)).slice_name if targets else "", len(targets)
        )
        self.blobs = list_blobs(parse_tree(content.tree))
        self._tree = Blob(content.sha256, len(content.tree))
        self._until = until
        self._copy = copy
        self._prepare = prepare
        self._silent_since: dict[int, float] = {}

    def query_hosts(self, known: Sequence[Reply[LacksReply]] = (), *, fresh: bool = False) -> None:
        """What each lacks, but for `known` answers; a list of files that is short, for few workers, or that no
        other host has goes to those that have not seen it. `fresh` hosts cannot have seen it, and get one that
        is short at once."""
        short = len(self.content.tree) <= INLINE_TREE
        for answer in known:
            self._note_answer(answer)
        if fresh and short and not known:
            self.state.needs.update(dict.fromkeys(self.by_worker))
        else:
            told = {answer.worker for answer in known}
            self.ask([worker for worker in self.by_worker if worker not in told])
        new = [worker for worker in self.by_worker if self.state.needs.get(worker, frozenset()) is None]
        everything = frozenset([self._tree, *self.blobs])
        if self.where == CODE and sum(blob.size for blob in everything) <= INLINE_TREE:
            self.state.needs.update(dict.fromkeys(new, everything))
        elif self.where.hosts_only or len(new) <= FEW_WORKERS or short:
            self.ask(new, with_tree=True)

    def late(self) -> bool:
        """The time is up: nothing more is sent."""
        return self._until is not None and self.clock.now() >= self._until

    def limited(self, timeout_s: float) -> float:
        """What is left of the time, if that is less."""
        if self._until is None:
            return timeout_s
        return max(1.0, min(timeout_s, self._until + OVERTIME_S - self.clock.now()))

    def cut_off(self, reply: Reply[Any]) -> bool:
        """It was this side that ended the call, because the time was up: what arrived counts. A busy host that
        has not noticed such an end still writes what came before; the next step finds that."""
        if self._until is not None and reply.error == "busy":
            return True
        return self.late() and (reply.result.failure is FailureKind.TIMEOUT or reply.error == "bad-payload")

    # ------------------------------------------------------------ asking

    def request(self) -> LacksRequest:
        """What hosts are asked of the tree."""
        where = self.where
        return LacksRequest(
            where.area, self.content.sha256, where.destination, tuple(where.names), copy=self._copy
        )

    def targets(self, workers: Iterable[int]) -> list[HostTarget]:
        return [self.by_worker[worker] for worker in workers]

    def ask(self, workers: Sequence[int], *, with_tree: bool = False, patience_s: float = 0.0) -> None:
        """What they lack now; sends the list of files along if they have not seen it. So long, but not beyond
        the end of the time, they wait for the end of their copies; who then has everything prepares."""
        if workers:
            tree = [(self._tree, 0, [self.content.tree])] if with_tree else []
            timeout_s = self.limited(ASK_TIMEOUT_S)
            left_s = patience_s if self._until is None else self._until - self.clock.now()
            request = replace(self.request(), follows=with_tree, patience_s=max(0.0, min(patience_s, left_s)))
            payload = b"".join(render_contents(tree)) if tree else b""
            targets, prepare = self.targets(workers), self._prepare if patience_s else None
            for answer in self._ask_with(prepare, targets, request, payload, timeout_s):
                self._note_answer(answer)
            if with_tree:
                self.meter.add(self._tree.size * len(workers))
            self.emit_done()

    def _note_answer(self, answer: Reply[LacksReply]) -> None:
        if answer.value is not None:
            self._silent_since.pop(answer.worker, None)
            self._note_lacking(answer.worker, answer.value)
        elif self.cut_off(answer):
            self.state.needs.setdefault(answer.worker, None)
        elif self._goes_on_unseen(answer):
            self._note_silent(answer)
        else:
            self.give_up(answer)

    def _goes_on_unseen(self, answer: Reply[LacksReply]) -> bool:
        """Whether only the connection to a host is gone that copies: it does so without us."""
        copy = self.state.copies.get(answer.worker)
        return copy is not None and copy.going and self._until is None and answer.result.failure in PASSING

    def _note_silent(self, answer: Reply[LacksReply]) -> None:
        worker, now = answer.worker, self.clock.now()
        if now - self._silent_since.setdefault(worker, now) >= SILENCE_S:
            self.state.copies[worker] = CopyStatus(WorkerState.UNREACHABLE)
            self.state.begun.pop(worker, None)  # if its copy goes on all the same, that has the part
            self.note_unfetched(worker, f"it has not answered for {SILENCE_S:.0f} s: {answer.message}")

    def _note_lacking(self, worker: int, reply: LacksReply) -> None:
        if reply.bits is not None:
            self.state.needs[worker] = self.lacking(reply)
            self.note_begun(worker, reply)
        if reply.copy is not None:
            self._note_copy(worker, reply.copy)

    def _note_copy(self, worker: int, copy: CopyStatus) -> None:
        if self._until is None and copy.state.final and worker not in self.state.copies:
            return  # that of an earlier command
        self.state.copies[worker] = copy
        if copy.bytes:
            self.meter.relayed(worker, copy.bytes)
        if copy.state.final and self.state.needs[worker] != frozenset():
            self.note_unfetched(worker, copy.error or "its copy ended early")

    def note_unfetched(self, worker: int, why: str) -> None:
        text = f"worker {worker} could not fetch from its neighbour: {why}"
        self.meter.emit(Note(self.by_worker[worker].slice_name, text))

    def note_begun(self, worker: int, reply: LacksReply) -> None:
        count = len(self.blobs)
        self.state.begun[worker] = {self.blobs[n]: came for n, came in reply.begun if 0 <= n < count}

    def lacking(self, reply: LacksReply) -> frozenset[Blob] | None:
        return select_lacking(self.blobs, reply.bits or "") if reply.has_tree else None

    def lacking_to_serve(self, worker: int) -> frozenset[Blob] | None:
        """What any of them lacks and this one could not hand on; None where it does not say."""
        request = replace(self.request(), destination=None)
        [answer] = self.agent.ask(self.targets([worker]), request, timeout_s=ASK_TIMEOUT_S)
        lacking = None if answer.value is None else self.lacking(answer.value)
        if lacking is None or answer.value is None:
            self.give_up(answer)
            return None
        self.note_begun(worker, answer.value)
        return lacking & self.lacking_of(self.state.unfinished())

    def lacking_of(self, workers: Iterable[int]) -> frozenset[Blob]:
        """What any of them lacks: all, where one has not seen the tree."""
        needs = [self.state.needs.get(worker) for worker in workers]
        return frozenset().union(*(self.blobs if need is None else need for need in needs))

    def emit_done(self) -> None:
        lacking = len(self.state.unfinished()) + len(self.state.failed)
        self.meter.done(len(self.by_worker) - lacking)

    def give_up(self, reply: Reply[Any]) -> None:
        self.state.needs.pop(reply.worker, None)
        self.state.failed[reply.worker] = reply

    # ------------------------------------------------------------ sending

    def send(self, workers: Sequence[int], needs: Mapping[int, frozenset[Blob]]) -> list[Reply[Any]]:
        """Sends each worker its own contents over its own connection."""

        def wanted(target: HostTarget) -> list[Blob]:
            return [blob for blob in (self._tree, *self.blobs) if blob in needs[target.worker]]

        def received(worker: int, blob: Blob) -> int:
            return min(blob.size, max(0, self.state.begun.get(worker, {}).get(blob, 0)))

        self.meter.expect(
            sum(blob.size - received(worker, blob) for worker in workers for blob in needs[worker])
        )

        def frames(target: HostTarget) -> Iterator[bytes]:
            return self._frames([(blob, received(target.worker, blob)) for blob in wanted(target)])

        request, timeout_s = ReceiveRequest(self.where.area), self.limited(TRANSFER_TIMEOUT_S)
        return self._ask_with(self._prepare, self.targets(workers), request, frames, timeout_s)

    def _ask_with(
        self,
        prepare: Asked[PrepareReply] | None,
        targets: Sequence[HostTarget],
        request: AgentRequest[R],
        payload: Payload,
        timeout_s: float,
    ) -> list[Reply[R]]:
        """Asks hosts, and in the same call to prepare, if they are to."""
        if prepare is None:
            return self.agent.ask(targets, request, payload=payload, timeout_s=timeout_s)
        replies, prepared = self.agent.ask_both(targets, request, prepare, payload=payload, timeout_s=timeout_s)
        self.state.prepared.update((reply.worker, reply) for reply in prepared)
        return replies

    def _frames(self, wanted: Sequence[tuple[Blob, int]]) -> Iterator[bytes]:
        """The rest of each content behind what has come of it, until the time is up."""

        def may_go_on(size: int) -> bool:
            if self.late():
                return False
            self.meter.add(size)
            return True

        contents = ((blob, come, self._read(blob)) for blob, come in wanted)
        return render_contents(contents, may_go_on)

    def _read(self, blob: Blob) -> Iterable[bytes]:
        return [self.content.tree] if blob == self._tree else self.content.read(blob.sha256)

    def send_directly(self, without: frozenset[int] = frozenset()) -> None:
        """To each what it lacks, but to those `without` whom others care for."""
        chosen = [worker for worker in self.state.unfinished() if worker not in without]
        self.ask([worker for worker in chosen if self.state.needs[worker] is None], with_tree=True)
        needs = {worker: need for worker in chosen if (need := self.state.needs.get(worker))}
        for reply in self.send(list(needs), needs) if needs else []:
            self.note_received(reply)

    def note_received(self, reply: Reply[Any]) -> bool:
        """Whether what was sent is there."""
        if reply.value is None:
            if not self.cut_off(reply):
                self.give_up(reply)
            return False
        self.state.needs[reply.worker] = frozenset()
        self.emit_done()
        return True

    # ------------------------------------------------------------ choosing

    def relay_is_faster(self) -> bool:
        """Whether hosts are better served by each other."""
        unfinished = self.state.unfinished()
        if self.where.hosts_only:
            return bool(unfinished)
        if not unfinished or len(unfinished) + len(self.complete) <= FEW_WORKERS:
            return False
        unseen = any(self.state.needs[worker] is None for worker in unfinished)
        wanted: set[Blob] = set(self.blobs) if unseen else set()
        for worker in unfinished:
            wanted |= self.state.needs[worker] or frozenset()
        return sum(blob.size for blob in wanted) + (len(self.content.tree) if unseen else 0) > SMALL_BYTES

    def seeds(self) -> list[int]:
        """Those first that lack least, so that one which was begun with is gone on with."""

        def missing(worker: int) -> int:
            begun = self.state.begun.get(worker, {})
            needs = self.state.needs.get(worker)
            blobs = self.blobs if needs is None else needs
            return sum(blob.size - begun.get(blob, 0) for blob in blobs)

        return sorted(self.state.unfinished(), key=lambda worker: (missing(worker), worker))
