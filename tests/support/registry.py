"""A registry of container images on this machine (distribution's HTTP API V2), with images that tests make.

Repositories below `private` want a token, for which a client logs in as hosts do at Artifact Registry.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG, LAYER = "application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar+gzip"
APPLETS = ("cat", "echo", "env", "grep", "id", "kill", "ls", "sh", "sleep", "stat", "true")


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def busybox_layer(program: str, more: Mapping[str, bytes] = {}) -> bytes:
    """A root directory of a static busybox, as a tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("bin", "tmp", "etc", "proc", "sys", "dev"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)
        files = {"bin/busybox": Path(program).read_bytes(), **more}
        for name, data in files.items():
            file = tarfile.TarInfo(name)
            file.size, file.mode = len(data), 0o755
            tar.addfile(file, io.BytesIO(data))
        for name in APPLETS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return buffer.getvalue()


class Registry:
    """What it holds, by repository and tag or digest; `logins` are the users that logged in."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], bytes] = {}
        self.pulled: list[tuple[str, str]] = []
        self.logins: set[tuple[str, str]] = set()

    def push(self, name: str, tag: str, layer: bytes, *, architecture: str = "amd64", **config: Any) -> str:
        """The digest of the image."""
        packed = gzip.compress(layer, 1, mtime=0)
        about = {
            "architecture": architecture,
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [digest_of(layer)]},
        }
        kept = {LAYER: packed, CONFIG: json.dumps(about).encode()}
        rows = {
            kind: {"mediaType": kind, "digest": digest_of(data), "size": len(data)}
            for kind, data in kept.items()
        }
        self.blobs.update({digest_of(data): data for data in kept.values()})
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": rows[CONFIG], "layers": [rows[LAYER]]}
        data = json.dumps(manifest).encode()
        for reference in (tag, digest_of(data)):
            self.manifests[name, reference] = data
        return digest_of(data)

    def find(self, path: str) -> tuple[str, bytes] | None:
        """What is at a path, with its type."""
        found = re.fullmatch(r"/v2/(?P<name>.+)/(?P<kind>manifests|blobs)/(?P<reference>[^/]+)", path)
        if found is None:
            return None
        name, kind, reference = found["name"], found["kind"], found["reference"]
        if kind == "blobs":
            return ("application/octet-stream", self.blobs[reference]) if reference in self.blobs else None
        self.pulled.append((name, reference))
        manifest = self.manifests.get((name, reference))
        return (MANIFEST, manifest) if manifest is not None else None


def handler_of(registry: Registry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, said = self.path.partition("?")[0], self.headers.get("Authorization", "")
            login = said == "Bearer for-oauth2accesstoken"
            if path == "/token":
                words = base64.b64decode(said.removeprefix("Basic ")).decode()
                user, _, password = words.partition(":")
                registry.logins.update([(user, password)] if user else [])
                self.reply(200, "application/json", json.dumps({"token": f"for-{user}"}).encode())
            elif (path == "/v2/" and not said) or ("/private/" in path and not login):
                realm = f'Bearer realm="http://{self.headers["Host"]}/token",service="test"'
                self.reply(401, "application/json", problem("UNAUTHORIZED"), {"WWW-Authenticate": realm})
            elif path == "/v2/":
                self.reply(200, "application/json", b"{}")
            elif (found := registry.find(path)) is not None:
                self.reply(200, *found, {"Docker-Content-Digest": digest_of(found[1])})
            else:
                self.reply(404, "application/json", problem("MANIFEST_UNKNOWN"))

        do_HEAD = do_GET

        def reply(self, status: int, kind: str, data: bytes, more: Mapping[str, str] = {}) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **more}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Says nothing: tests look at what was pulled."""

    return Handler


def problem(code: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": code.lower().replace("_", " ")}]}).encode()


@contextmanager
def serve(address: str, port: int) -> Iterator[Registry]:
    """A registry at an address of this machine."""
    registry = Registry()
    server = ThreadingHTTPServer((address, port), handler_of(registry))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
