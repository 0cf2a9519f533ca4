"""Copies to and from workers as tar streams, with names, modes and symbolic links kept.

Local files are the caller's: `push` is given the archive in pieces, `pull` hands pieces to one receiver per
worker.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from tpuctl.core.model import HostTarget, RemoteResult
from tpuctl.core.shell import Shell, quote
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.ports import Remote

COPY_TIMEOUT_S = 6 * 3600.0
STDERR_KEPT = 8192


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


def render_push(names: Sequence[str], destination: str) -> str:
    """Unpacks an archive with the top-level `names`.

    As with cp: into `destination` if that is a directory, ends in a slash or there are several names; otherwise
    the one name becomes `destination`, whole or not at all.
    """
    path = host_path(destination)
    unpack = "tar --no-same-owner -xpf - -C"
    into = Shell.of("mkdir -p ").arg(path).lit(f" && exec {unpack} ").arg(path).text
    if len(names) != 1 or path.endswith("/"):
        return into
    parent = posixpath.dirname(path)
    stage = (
        f"mkdir -p {quote(parent)} && t=$(mktemp -d {quote(parent)}/.tpuctl-cp.XXXXXX) && "
        f'trap \'rm -rf "$t"\' EXIT && {unpack} "$t" && mv -T "$t"/{quote(names[0])} {quote(path)}'
    )
    return f"if [ -d {quote(path)} ]; then {into}; else {stage}; fi"


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
    remote: Remote,
    targets: Sequence[HostTarget],
    archive: Callable[[], Iterable[bytes]],
    names: Sequence[str],
    destination: str,
    *,
    timeout_s: float = COPY_TIMEOUT_S,
) -> list[RemoteResult]:
    """Sends `archive()` (called once per worker) with the top-level entries `names` to every target."""
    return remote.run(
        targets, render_push(names, destination), stdin=lambda _target: archive(), timeout_s=timeout_s
    )


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
