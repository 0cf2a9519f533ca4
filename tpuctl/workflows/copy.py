"""Copies to and from workers, with names, modes and symbolic links kept.

Local files are the caller's: `push` is given a tree and a way to read its contents, `pull` hands the pieces of
a tar stream to one receiver per worker.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tpuctl.core.model import HostTarget, RemoteResult
from tpuctl.core.shell import Shell
from tpuctl.core.tree import Content
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.ports import Clock, EventSink, Remote
from tpuctl.workflows.distribute import Where, distribute
from tpuctl.workflows.host_helper import HelperReply, HostHelper

COPY_TIMEOUT_S = 6 * 3600.0
STDERR_KEPT = 8192


@dataclass(frozen=True)
class Pushed:
    """Results in the order of the targets. `sent_bytes` left this machine; `relayed`: workers passed it on."""

    results: tuple[RemoteResult, ...]
    sent_bytes: int
    relayed: bool


class Receiver(Protocol):
    """Takes the tar stream of one worker."""

    def write(self, data: bytes) -> None: ...

    def finish(self) -> None:
        """The stream is complete: unpacks it. TpuctlError and nothing written if a member leaves the target."""
        ...

    def discard(self) -> None:
        """The stream broke off."""
        ...


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


def render_pull(path: str) -> str:
    """Packs `path` under its own name. A file that grows meanwhile (tar's exit status 1) is no failure."""
    parent, name = split_host_path(path)
    pack = Shell.of("tar -C ").arg(parent).lit(" -cf - ").arg(name)
    return pack.lit("; s=$?; [ $s -ne 1 ] || s=0; exit $s").text


def split_host_path(path: str) -> tuple[str, str]:
    """Directory and entry of a path on a host; the entry is `.` where the path has no name of its own."""
    found = host_path(path).rstrip("/") or "/"
    parent, name = posixpath.split(found)
    if name in ("", ".", ".."):
        return found, "."
    return parent, f"./{name}"


def push(
    helper: HostHelper,
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
    sent = distribute(helper, targets, content, clock=clock, emit=emit, where=where)
    ready = [target for target in targets if target.worker not in sent.failed]
    request = {
        "area": where.area,
        "tree": content.sha256,
        "destination": where.destination,
        "names": list(names),
    }
    placed = helper.call(ready, "place", request, timeout_s=COPY_TIMEOUT_S) if ready else []
    replies = {**sent.failed, **{reply.worker: reply for reply in placed}}
    results = tuple(_result_of(replies[target.worker]) for target in targets)
    return Pushed(results, sent.sent_bytes, sent.relayed)


def _result_of(reply: HelperReply) -> RemoteResult:
    if reply.error is None:
        return reply.result
    status = reply.result.exit_status
    return replace(reply.result, exit_status=None if status is None else status or 1, detail=reply.message)


def pull(
    remote: Remote,
    targets: Sequence[HostTarget],
    path: str,
    open_receiver: Callable[[HostTarget], Receiver],
    *,
    timeout_s: float = COPY_TIMEOUT_S,
    should_stop: Callable[[], bool] | None = None,
) -> list[RemoteResult]:
    """Fetches `path` from every target. A worker whose archive was refused has exit status 1 and says why."""
    receivers = {target.worker: open_receiver(target) for target in targets}
    said: dict[int, bytes] = dict.fromkeys(receivers, b"")

    def sink(worker: int, name: str, data: bytes) -> None:
        if name == "stdout":
            receivers[worker].write(data)
        else:
            said[worker] = (said[worker] + data)[-STDERR_KEPT:]

    done: list[RemoteResult] = []
    try:
        results = remote.stream(targets, render_pull(path), sink, timeout_s=timeout_s, should_stop=should_stop)
        done = [_settle(result, receivers.pop(result.worker), said[result.worker]) for result in results]
    finally:
        for receiver in receivers.values():
            receiver.discard()
    return done


def _settle(result: RemoteResult, receiver: Receiver, stderr: bytes) -> RemoteResult:
    result = replace(result, stderr=stderr)
    if not result.ok:
        receiver.discard()
        return result
    try:
        receiver.finish()
    except TpuctlError as error:
        return replace(result, exit_status=1, detail=error.message)
    return result
