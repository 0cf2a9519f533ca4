"""A small Hugging Face hub, on a socket: its API as far as a download of the real client asks for it.

https://huggingface.co/docs/hub/api and the headers that huggingface_hub reads (`get_hf_file_metadata`): files
of Git LFS are elsewhere, in ranges, and others come as they are.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LFS_FROM = 1000
"""Bytes from which a file is one of Git LFS here."""


@dataclass
class Repo:
    """`commits` has the files of each, `refs` the commits of branches. A `token` is needed to see a private
    one, and to read one that is gated."""

    commits: dict[str, Mapping[str, bytes]]
    refs: dict[str, str]
    token: str = ""
    gated: bool = False


@dataclass
class Hub:
    """`repos` by `models/ORG/NAME`. Each number of `cuts`, the first first, ends an answer with content of LFS
    that is longer, after so many bytes."""

    repos: dict[str, Repo] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    """Those that were asked for."""
    served: dict[str, int] = field(default_factory=dict)
    """How many times the content of a file was asked for, by its path."""
    claimed: dict[str, int] = field(default_factory=dict)
    """Sizes that listings say in place of the true ones, by path."""
    damaged: set[str] = field(default_factory=set)
    """Files of LFS whose content arrives as another, of the same size."""
    url: str = ""

    def add(self, name: str, files: Mapping[str, bytes], **more: object) -> str:
        """A repository with one commit on `main`, which is returned."""
        commit = hashlib.sha1(name.encode()).hexdigest()
        self.repos[name] = Repo({commit: dict(files)}, {"main": commit}, **more)  # type: ignore[arg-type]
        return commit


class _Refusal(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


def _rows(hub: Hub, files: Mapping[str, bytes]) -> Iterator[dict[str, object]]:
    for path, content in sorted(files.items()):
        size = hub.claimed.get(path, len(content))
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        row: dict[str, object] = {"type": "file", "path": path, "size": size, "oid": oid}
        if len(content) >= LFS_FROM:
            digest = hashlib.sha256(content).hexdigest()
            row["lfs"] = {"oid": digest, "size": size, "pointerSize": 134}
        yield row


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Nothing: tests read what the client says."""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        try:
            if found := re.fullmatch(r"/api/((?:models|datasets)/[^/]+/[^/]+)/(revision|tree)/(.+)", path):
                self._api(*found.groups())
            elif found := re.fullmatch(r"/cdn/(.+)", path):
                self._content(self._of_cdn(found[1]))
            elif found := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                self._resolve(f"{found[1] or 'models/'}{found[2]}", found[3], found[4])
            else:
                raise _Refusal(404, "EntryNotFound")
        except _Refusal as refusal:
            self._send(refusal.status, b"{}", {"X-Error-Code": refusal.code, "X-Error-Message": refusal.code})

    def _commit(self, name: str, revision: str) -> tuple[Repo, str]:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.token and not repo.gated and not self._knows(repo)):
            raise _Refusal(401, "RepoNotFound")
        commit = repo.refs.get(revision, revision)
        if commit not in repo.commits:
            raise _Refusal(404, "RevisionNotFound")
        return repo, commit

    def _knows(self, repo: Repo) -> bool:
        return self.headers.get("Authorization") == f"Bearer {repo.token}"

    def _api(self, name: str, what: str, revision: str) -> None:
        repo, commit = self._commit(name, revision)
        found: object = {"id": name.partition("/")[2], "sha": commit, "siblings": []}
        if what == "tree":
            found = list(_rows(self.hub, repo.commits[commit]))
        self._send(200, json.dumps(found).encode(), {"Content-Type": "application/json"})

    def _resolve(self, name: str, revision: str, path: str) -> None:
        repo, commit = self._commit(name, revision)
        if repo.gated and not self._knows(repo):
            raise _Refusal(403, "GatedRepo")
        content = repo.commits[commit].get(path)
        if content is None:
            raise _Refusal(404, "EntryNotFound")
        size = self.hub.claimed.get(path, len(content))
        [row] = _rows(self.hub, {path: content})
        head = {"X-Repo-Commit": commit, "ETag": f'"{row["oid"]}"'}
        if "lfs" not in row:
            self._count(path)
            self._send(200, content, head)
            return
        digest = hashlib.sha256(content).hexdigest()
        head |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(size)}
        elsewhere = self.hub.url.replace(
            "127.0.0.1", "localhost"
        )  # the client follows no other host for a HEAD
        self._send(302, b"", head | {"Location": f"{elsewhere}/cdn/{name}/{commit}/{path}"})

    def _of_cdn(self, where: str) -> bytes:
        kind, org, name, commit, path = where.split("/", 4)
        self._count(path)
        content = self.hub.repos[f"{kind}/{org}/{name}"].commits[commit][path]
        return bytes(len(content)) if path in self.hub.damaged else content

    def _count(self, path: str) -> None:
        if self.command == "GET":
            self.hub.served[path] = self.hub.served.get(path, 0) + 1

    def _content(self, content: bytes) -> None:
        """All of it, or from where the client has it on."""
        begin, wanted = 0, self.headers.get("Range", "")
        if found := re.fullmatch(r"bytes=(\d+)-", wanted):
            self.hub.ranges.append(wanted)
            begin = int(found[1])
        whole = len(content)
        head = {"Accept-Ranges": "bytes"}
        if begin:
            head["Content-Range"] = f"bytes {begin}-{whole - 1}/{whole}"
        cut = self.hub.cuts.pop(0) if self.hub.cuts and whole - begin > self.hub.cuts[0] else None
        self._send(206 if begin else 200, content[begin:], head, cut=cut)

    def _send(self, status: int, content: bytes, head: Mapping[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for key, value in {**head, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[:cut])
        if cut is not None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def serving_hub() -> Iterator[Hub]:
    """A hub without repositories."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
