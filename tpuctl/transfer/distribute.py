"""Brings the contents of a tree to many hosts: only what each lacks, and over this machine's uplink once.

Content is named by its sha256, so nothing is sent twice, and what arrived before an interruption counts. For
more than a few workers one of them gets everything and serves the others inside their network (`host_copies`);
a worker that cannot fetch is sent to directly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.engine.ports import Clock, EventSink
from tpuctl.hosts.agent import Asked, HostAgent, Reply
from tpuctl.hosts.protocol import LacksReply, PrepareReply
from tpuctl.model.cloud import HostTarget
from tpuctl.transfer.host_copies import CopyJob, HostCopies, command_job, copy_name
from tpuctl.transfer.lacking import CODE, FEW_WORKERS, Spreading, Where
from tpuctl.transfer.tree import Content


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
    until: float | None = None,
    job: CopyJob | None = None,
    complete: Sequence[HostTarget] = (),
    known: Sequence[Reply[LacksReply]] = (),
    fresh: bool = False,
    prepare: Asked[PrepareReply] | None = None,
) -> Distributed:
    """Afterwards every target not in `failed` has all contents of `content`, below ~/.tpuctl or in their place.
    Raises ValueError for a tree that is none.

    What hosts do for it ends with this call, unless it is a step of a `job`: then nothing more is sent from
    `until` on (by `clock`), and it returns at most OVERTIME_S later. What hosts copy from each other they go on
    with on their own; the same call later finds how far they got. `complete` are hosts of the slice that have
    all contents already, `known` what some lack. On `fresh` hosts no such tree was ever put. `prepare` follows
    what is sent to a host, in the same call.
    """
    own = job or command_job(content.sha256)
    asks = job is not None or len(targets) > FEW_WORKERS  # to tell of copies costs hosts something
    name = copy_name(own, content.sha256, "fetch") if asks else None
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
    spread.query_hosts(known, fresh=fresh)
    copies = HostCopies(spread, own)
    try:
        while True:
            copying = copies.go_on()
            if not spread.late() and not where.hosts_only:
                spread.send_directly(copying)
            if job is not None or not copying:
                break
    finally:
        if job is None:
            copies.stop()
    state = spread.state
    unfinished = frozenset(state.unfinished())
    return Distributed(
        state.failed, spread.meter.moved, copies.begun, unfinished, copying & unfinished, state.prepared
    )
