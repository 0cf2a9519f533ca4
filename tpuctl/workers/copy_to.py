"""Copies to workers, with names, modes and symbolic links kept; `pull` is the way back. `mirror` keeps one
directory equal to ours.

Local files are the caller's, who gives a tree and a way to read its contents.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.ports import Clock, EventSink
from tpuctl.errors import NotFoundError, UsageError
from tpuctl.hosts.agent import HostAgent, Reply
from tpuctl.hosts.requests import PlaceRequest, ReceiveRequest
from tpuctl.model.cloud import HostTarget, RemoteResult
from tpuctl.transfer.distribute import distribute
from tpuctl.transfer.frames import render_contents
from tpuctl.transfer.lacking import SMALL_BYTES, TRANSFER_TIMEOUT_S, Where
from tpuctl.transfer.tree import Blob, Content, Entry, TreeFile, TreeFolder, TreeLink, parse_tree, render_tree

COPY_TIMEOUT_S = 6 * 3600.0


class Pushed(Struct, frozen=True):
    """Results in the order of the targets. `sent_bytes` left this machine; `relayed`: workers passed it on.
    `kept`: what a mirror found changed on a worker, each path with the name under which it lies there now; no
    name where it lies where it was."""

    results: tuple[RemoteResult, ...]
    sent_bytes: int
    relayed: bool
    kept: Mapping[int, tuple[tuple[str, str], ...]] = {}


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
    mirror: bool = False,
    before: bytes | None = None,
) -> Pushed:
    """Puts the tree `content` with the top-level entries `names` on every target.

    As with cp: into `destination` if that is a directory, ends in a slash or there are several names; otherwise
    the one name becomes `destination`. Files appear whole or not at all, and so do directories that were not
    there. Only contents that a worker lacks travel, at `destination` or from a copy that broke off before.

    `mirror`: what an earlier call put into the one directory and `content` has no more goes away. What somebody
    changed on a worker since is kept, and told. `before` is the tree that all targets were given last: a small
    change of it takes one call.
    """
    where = Where("incoming", host_path(destination), tuple(names))
    request = PlaceRequest(where.area, content.sha256, host_path(destination), where.names, mirror)
    replies, change_bytes = _send_change(agent, targets, content, before, request)
    left = [target for target in targets if target.worker not in replies]
    sent = distribute(agent, left, content, clock=clock, emit=emit, where=where)
    replies.update(sent.failed)
    ready = [target for target in left if target.worker not in sent.failed]
    placed = agent.ask(ready, request, timeout_s=COPY_TIMEOUT_S)
    replies.update((reply.worker, reply) for reply in placed)
    results = tuple(_result_of(replies[target.worker]) for target in targets)
    done = {worker: reply.value for worker, reply in replies.items() if reply.value is not None}
    kept = {worker: answer.kept for worker, answer in done.items() if answer.kept}
    return Pushed(results, change_bytes + sent.sent_bytes, sent.relayed, kept)


def _send_change(
    agent: HostAgent,
    targets: Sequence[HostTarget],
    content: Content,
    before: bytes | None,
    place: PlaceRequest,
) -> tuple[dict[int, Reply[Any]], int]:
    """The answers of the workers that had the rest of `content`, and the bytes that were sent to all. Others,
    which lost something of it or where it was changed, have no answer here; so has nobody a large change."""
    if before is None:
        return {}, 0
    old = {(entry.path, entry.blob) for entry in parse_tree(before) if isinstance(entry, TreeFile)}
    files = [entry for entry in parse_tree(content.tree) if isinstance(entry, TreeFile)]
    lacking = dict.fromkeys(entry.blob for entry in files if (entry.path, entry.blob) not in old)
    tree = Blob(content.sha256, len(content.tree))
    size = tree.size + sum(blob.size for blob in lacking)
    if size > SMALL_BYTES:
        return {}, 0

    def payload(_target: HostTarget) -> Iterator[bytes]:
        contents = ((blob, 0, content.read(blob.sha256)) for blob in lacking)
        return render_contents(chain([(tree, 0, [content.tree])], contents))

    receive = ReceiveRequest(place.area)
    _, placed = agent.ask_both(targets, receive, place, payload=payload, timeout_s=TRANSFER_TIMEOUT_S)
    return {reply.worker: reply for reply in placed if reply.value is not None}, size * len(targets)


def _result_of(reply: Reply[Any]) -> RemoteResult:
    if reply.error is None:
        return reply.result
    status = reply.result.exit_status
    return replace(reply.result, exit_status=None if status is None else status or 1, detail=reply.message)


CHUNK = 1 << 18


def scan(paths: Sequence[Path]) -> Content:
    """The files and directories as one tree, each under its last name. NotFoundError if one is missing.

    Sockets, pipes and devices are left out: they have no content to copy.
    """
    entries: list[Entry] = []
    places: dict[str, Path] = {}
    for path in paths:
        top = top_name(path)
        for found in _walk(path):
            name = top if found == path else f"{top}/{found.relative_to(path).as_posix()}"
            entry = _entry(found, name)
            if isinstance(entry, TreeFile):
                places[entry.blob.sha256] = found
            if entry is not None:
                entries.append(entry)
    return Content(render_tree(entries), lambda sha256: _pieces(places[sha256]))


def check_copyable(path: Path) -> None:
    """Raises UsageError for what is not there, and for what has no content to copy."""
    try:
        mode = path.lstat().st_mode
    except OSError as error:
        raise UsageError(
            f"there is no {path} to copy: {str(error.strerror).lower()}", hint="tpuctl cp SOURCE... NAME:PATH"
        ) from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
        raise UsageError(
            f"{path} is a socket, pipe or device: it has no content to copy",
            hint=f"cat {path} > FILE, and copy FILE",
        )


def count_special(paths: Sequence[Path]) -> int:
    """How many sockets, pipes and devices lie in the directories: `scan` leaves them out."""
    kept = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    found = [each.lstat().st_mode for path in paths for each in _walk(path)]
    return sum(not any(kind(mode) for kind in kept) for mode in found)


def top_name(path: Path) -> str:
    """The name that `path` gets on the hosts, also for `.` and `..`."""
    return path.name if path.name not in ("", "..") else path.resolve().name


def _walk(path: Path) -> Iterator[Path]:
    yield path
    if path.is_dir() and not path.is_symlink():
        for child in sorted(path.iterdir()):
            yield from _walk(child)


def _entry(path: Path, name: str) -> Entry | None:
    try:
        status = path.lstat()
        mode = status.st_mode & 0o777
        if path.is_symlink():
            return TreeLink(name, str(path.readlink()))
        if path.is_dir():
            return TreeFolder(name, mode)
        if not path.is_file():
            return None
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return TreeFile(name, mode, Blob(digest, status.st_size), status.st_mtime_ns)
    except FileNotFoundError as error:
        raise NotFoundError(f"no such file: {path}") from error


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            yield data
