"""A Kubernetes API server on loopback that keeps objects in memory, for what needs no controller: a test writes
what JobSet, Kueue and kubelets would write. What the real one refuses (schemas, immutability) is tested with
the real one.
"""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import yaml

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>v[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?P<log>/log)?"
)
CORE = frozenset(
    {"pods", "nodes", "namespaces", "persistentvolumes", "persistentvolumeclaims", "secrets", "serviceaccounts"}
)
GROUPS: Mapping[str, tuple[str, ...]] = {
    "jobset.x-k8s.io/v1alpha2": ("jobsets",),
    "kueue.x-k8s.io/v1beta2": ("workloads", "localqueues", "clusterqueues", "resourceflavors"),
}
TOKEN = "good-token"


class KubeApi:
    """What the server holds. `now` is what it stamps new objects with."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.groups = dict(GROUPS)
        self.logs: dict[tuple[str, str], bytes] = {}
        self.lost: set[str] = set()
        """Pods whose node does not answer."""
        self.denied: dict[str, str] = {}
        """Plural → what is said of who may not see it."""
        self.refused: dict[str, str] = {}
        """Plural → what a webhook says of each that is applied."""
        self.token = TOKEN
        self.now = "2026-11-26T12:00:00Z"
        self.changes: list[str] = []
        """Each request that changed something."""
        self.keeps: set[str] = set()
        """Objects that are still there after their deletion was asked for: their pods have their grace."""
        self.url = ""
        self._uids = 0
        self.lock = threading.RLock()
        for namespace in ("default", "team"):
            self.put("namespaces", namespace, {"metadata": {"name": namespace}}, namespace="")

    def put(
        self, plural: str, name: str, content: Mapping[str, Any], *, namespace: str = "default"
    ) -> dict[str, Any]:
        """Writes an object, as somebody else does."""
        with self.lock:
            found = self.objects.get((namespace, plural, name))
            if found is None:
                self._uids += 1
                found = {"metadata": {"uid": f"uid-{self._uids}", "creationTimestamp": self.now}}
            merged = _merged(found, content)
            merged["metadata"] |= {"name": name} | ({"namespace": namespace} if namespace else {})
            self.objects[namespace, plural, name] = merged
            return merged

    def get(self, plural: str, name: str, *, namespace: str = "default") -> dict[str, Any]:
        with self.lock:
            return self.objects[namespace, plural, name]

    def remove(self, plural: str, name: str, *, namespace: str = "default") -> None:
        with self.lock:
            del self.objects[namespace, plural, name]

    def names(self, plural: str) -> list[str]:
        with self.lock:
            return sorted(name for _, kind, name in self.objects if kind == plural)

    def write_kubeconfig(
        self, path: Path, *, token: str = TOKEN, user: Mapping[str, Any] | None = None
    ) -> Path:
        """One whose context `tpu` is this server, and `gone` one at which nobody listens."""
        data = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tpu",
            "clusters": [
                {"name": "here", "cluster": {"server": self.url}},
                {"name": "nowhere", "cluster": {"server": "http://127.0.0.1:9"}},
            ],
            "users": [{"name": "me", "user": user or {"token": token}}],
            "contexts": [
                {"name": "tpu", "context": {"cluster": "here", "user": "me"}},
                {"name": "gone", "context": {"cluster": "nowhere", "user": "me", "namespace": "team"}},
            ],
        }
        path.write_text(yaml.safe_dump(data))
        return path

    def answer(
        self, method: str, url: str, token: str, body: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any] | bytes]:
        """What the server answers: a status, and JSON or text."""
        parts = urlsplit(url)
        query, path = dict(parse_qsl(parts.query)), unquote(parts.path)
        with self.lock:
            if token != f"Bearer {self.token}":
                return _status(401, "Unauthorized", "Unauthorized")
            group = path.removeprefix("/apis/")
            if path.startswith("/apis/") and group.count("/") == 1:
                return self._discovery(group)
            found = _PATH.fullmatch(path)
            if found is None or not self._serves(found):
                return 404, b"404 page not found\n"
            plural = found["plural"]
            if plural in self.denied:
                return _status(403, "Forbidden", self.denied[plural])
            if method == "GET":
                return self._read(found, query)
            return self._change(method, found, query, body)

    def _discovery(self, group: str) -> tuple[int, dict[str, Any] | bytes]:
        if group not in self.groups:
            return 404, b"404 page not found\n"
        return 200, {"kind": "APIResourceList", "resources": [{"name": name} for name in self.groups[group]]}

    def _serves(self, found: re.Match[str]) -> bool:
        if found["group"] is None:
            return found["plural"] in CORE
        return found["plural"] in self.groups.get(f"{found['group']}/{found['version']}", ())

    def _read(self, found: re.Match[str], query: Mapping[str, str]) -> tuple[int, dict[str, Any] | bytes]:
        namespace, plural, name = found["namespace"] or "", found["plural"], found["name"]
        if found["log"]:
            return self._log(name, query)
        if name is not None:
            there = self.objects.get((namespace, plural, name))
            return (200, there) if there is not None else _missing(plural, name)
        wanted = [pair.split("=") for pair in query.get("labelSelector", "").split(",") if pair]
        items = [
            each
            for (where, kind, _), each in sorted(self.objects.items())
            if kind == plural
            and namespace in ("", where)
            and all((each["metadata"].get("labels") or {}).get(key) == value for key, value in wanted)
        ]
        return 200, {"kind": "List", "metadata": {}, "items": items}

    def _log(self, pod: str, query: Mapping[str, str]) -> tuple[int, dict[str, Any] | bytes]:
        content = self.logs.get((pod, query["container"]))
        if content is None:
            return _status(400, "BadRequest", f"container {query['container']} is waiting to start")
        if pod in self.lost:
            return _status(500, "InternalError", f"dial tcp: lookup of the node of {pod}: no such host")
        since = query.get("sinceTime", "1970-01-01T00:00:00Z")
        try:
            after = datetime.strptime(since, "%Y-%m-%dT%H:%M:%S%z")
        except ValueError:
            return _status(400, "BadRequest", f'parsing time "{since}" as "2006-01-02T15:04:05Z07:00"')
        kept = [
            line
            for line in io.BytesIO(content)
            if datetime.fromisoformat(line.split(b" ")[0].decode()) >= after
        ]
        return 200, b"".join(kept)[: int(query["limitBytes"])]

    def _change(
        self, method: str, found: re.Match[str], query: Mapping[str, str], body: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any] | bytes]:
        namespace, plural = found["namespace"] or "", found["plural"]
        name = found["name"] or body["metadata"]["name"]
        if namespace and ("", "namespaces", namespace) not in self.objects:
            return _missing("namespaces", namespace)
        there = self.objects.get((namespace, plural, name))
        if method == "DELETE":
            return self._delete(namespace, plural, name, there, body)
        if plural in self.refused:
            return _status(403, "Forbidden", self.refused[plural])
        if there is not None and method == "POST":
            return _status(409, "AlreadyExists", f'{plural} "{name}" already exists')
        if there is not None and plural == "jobsets":
            policy = body["spec"].get("failurePolicy")
            if policy != there["spec"].get("failurePolicy"):
                return _status(
                    422, "Invalid", f'JobSet "{name}" is invalid: spec.failurePolicy: Value is immutable'
                )
        if query.get("dryRun") == "All":
            return 200, _merged(there or {"metadata": {}}, body)
        self.changes.append(f"{'create' if method == 'POST' else 'apply'} {plural}/{name}")
        return 200, self.put(plural, name, body, namespace=namespace)

    def _delete(
        self, namespace: str, plural: str, name: str, there: dict[str, Any] | None, body: Mapping[str, Any]
    ) -> tuple[int, dict[str, Any] | bytes]:
        if there is None:
            return _missing(plural, name)
        if (body.get("preconditions") or {}).get("uid") not in (None, there["metadata"]["uid"]):
            return _status(409, "Conflict", "the UID in the precondition does not match")
        self.changes.append(f"delete {plural}/{name}")
        if name in self.keeps:
            there["metadata"]["deletionTimestamp"] = self.now
            return 200, there
        self.remove(plural, name, namespace=namespace)
        for where, kind, pod in list(self.objects):
            labels = self.objects[where, kind, pod]["metadata"].get("labels") or {}
            if kind == "pods" and labels.get("jobset.sigs.k8s.io/jobset-name") == name:
                self.remove(kind, pod, namespace=where)
        return 200, {"kind": "Status", "status": "Success"}


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: _merged(old[key], value) for key, value in new.items() if isinstance(old.get(key), dict)}
    return {**old, **new, **both}


def _status(code: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


def _missing(plural: str, name: str) -> tuple[int, dict[str, Any]]:
    return _status(404, "NotFound", f'{plural} "{name}" not found')


@contextmanager
def serve_kube() -> Iterator[KubeApi]:
    """The server, for as long as it is needed."""
    held = KubeApi()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # an answer is one packet: a second one would wait 40 ms for the first to be taken

        def log_message(self, *words: object) -> None:
            """Says nothing."""

        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = yaml.safe_load(self.rfile.read(size)) if size else {}
            status, content = held.answer(self.command, self.path, self.headers.get("Authorization", ""), body)
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PATCH = do_POST = do_DELETE = _answer

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    held.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield held
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
