"""A Kubernetes API server as tests see it: a kubeconfig for programs, and requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import yaml

Object = dict[str, Any]
"""An object of Kubernetes as JSON."""
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
"""Merges rows of lists, such as conditions, by their keys; custom resources do not take it."""
ESTABLISH_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class KubeApi:
    """`kubeconfig` has the one `context`, whose user may do everything."""

    url: str
    kubeconfig: Path
    context: str
    token: str = ""
    ca: Path | None = None

    def request(self, method: str, path: str, body: Any = None, **query: Any) -> requests.Response:
        """As it answers, errors included. A PATCH merges its body, or applies it for a `fieldManager`."""
        patch = APPLY if "fieldManager" in query else STRATEGIC if path.startswith("/api/") else MERGE
        kind = patch if method == "PATCH" else "application/json"
        return self._send(method, path, body, query, {"Content-Type": kind}, stream=False)

    def stream(self, path: str, **query: Any) -> requests.Response:
        """An answer that is read while it comes."""
        return self._send("GET", path, None, query, {}, stream=True)

    def _send(
        self, method: str, path: str, body: Any, query: Object, headers: dict[str, str], *, stream: bool
    ) -> requests.Response:
        headers = {"Accept": "application/json", **headers}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        return requests.request(
            method,
            self.url + path,
            params=query,
            json=body,
            headers=headers,
            verify=str(self.ca) if self.ca else True,
            timeout=None if stream else 60,
            stream=stream,
        )

    def get(self, path: str, **query: Any) -> Object:
        """Raises RuntimeError with the server's words where it refuses, as do `create` and `patch`."""
        return _expect_ok(self.request("GET", path, **query))

    def create(self, path: str, body: Object) -> Object:
        return _expect_ok(self.request("POST", path, body))

    def patch(self, path: str, body: Object, **query: Any) -> Object:
        return _expect_ok(self.request("PATCH", path, body, **query))

    def wait(self, what: str, read: Callable[[], Object | None], timeout_s: float = 60.0) -> Object:
        """What `read` gives as soon as it gives something. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if (found := read()) is not None:
                return found
            time.sleep(0.2)
        raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")


def _expect_ok(answer: requests.Response) -> Object:
    if not answer.ok:
        raise RuntimeError(f"{answer.request.method} {answer.url}: {answer.status_code} {answer.text[:2000]}")
    return dict(answer.json())


def condition(found: Object, kind: str) -> Object | None:
    """The condition of that type in an object's status, if it is true."""
    rows = found.get("status", {}).get("conditions") or []
    return next((row for row in rows if row["type"] == kind and row["status"] == "True"), None)


def write_kubeconfig(path: Path, url: str, name: str, token: str = "", ca: Path | None = None) -> Path:
    """Of one cluster and one user, as kubectl reads it."""
    cluster = {"server": url, **({"certificate-authority": str(ca)} if ca else {})}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"token": token} if token else {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
        "current-context": name,
    }
    path.write_text(yaml.safe_dump(content))
    path.chmod(0o600)
    return path


CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def install_crds(api: KubeApi, folders: Iterable[Path]) -> None:
    """Creates all custom resources in these folders and waits until they are served."""
    definitions = [
        yaml.load(path.read_text(), yaml.CSafeLoader) for each in folders for path in sorted(each.iterdir())
    ]
    for definition in definitions:
        api.create(CRD_PATH, definition)
    for definition in definitions:
        name = definition["metadata"]["name"]

        def established(name: str = name) -> Object | None:
            found = api.get(f"{CRD_PATH}/{name}")
            return found if condition(found, "Established") else None

        api.wait(f"{name} is served", established, ESTABLISH_TIMEOUT_S)
