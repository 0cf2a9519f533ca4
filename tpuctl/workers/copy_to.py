"""Copies to workers, with names, modes and symbolic links kept; `pull` is the way back.

Local files are the caller's, who gives a tree and a way to read its contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.ports import Clock, EventSink
from tpuctl.errors import UsageError
from tpuctl.hosts.agent import HostAgent, Reply
from tpuctl.model.cloud import HostTarget, RemoteResult
from tpuctl.transfer.distribute import distribute
from tpuctl.transfer.lacking import Where
from tpuctl.transfer.tree import Content

COPY_TIMEOUT_S = 6 * 3600.0


class Pushed(Struct, frozen=True):
    """Results in the order of the targets. `sent_bytes` left this machine; `relayed`: workers passed it on."""

    results: tuple[RemoteResult, ...]
    sent_bytes: int
    relayed: bool


def host_path(path: str) -> str:
    """A path as typed by a user, relative to the login directory, so that no program takes it for an option.

    UsageError for what a shell would expand and we do not (`~other`).
    """
    if path in ("", "~"):
        return "."
    if path.startswith("~/"):
        path = path[2:] or "."
    elif path.startswith("~"):
        raise UsageError(
            f"{path!r} names another user's home", hint="give an absolute path, or one relative to your home"
        )
    return path if path.startswith("/") else f"./{path}"


def push(
    agent: HostAgent,
    targets: Sequence[HostTarget],
    content: Content,
    names: Sequence[str],
    destination: str,
    *,
    clock: Clock,
    emit: EventSink,
) -> Pushed:
    """Puts the tree `content` with the top-level entries `names` on every target.

    As with cp: into `destination` if that is a directory, ends in a slash or there are several names; otherwise
    the one name becomes `destination`. Files appear whole or not at all, and so do directories that were not
    there. Only contents that a worker lacks travel, at `destination` or from a copy that broke off before.
    """
    where = Where("incoming", host_path(destination), tuple(names))
    sent = distribute(agent, targets, content, clock=clock, emit=emit, where=where)
    ready = [target for target in targets if target.worker not in sent.failed]
    request = {
        "area": where.area,
        "tree": content.sha256,
        "destination": where.destination,
        "names": list(names),
    }
    placed = agent.call(ready, "place", request, timeout_s=COPY_TIMEOUT_S) if ready else []
    replies = {**sent.failed, **{reply.worker: reply for reply in placed}}
    results = tuple(_result_of(replies[target.worker]) for target in targets)
    return Pushed(results, sent.sent_bytes, sent.relayed)


def _result_of(reply: Reply[Any]) -> RemoteResult:
    if reply.error is None:
        return reply.result
    status = reply.result.exit_status
    return replace(reply.result, exit_status=None if status is None else status or 1, detail=reply.message)
