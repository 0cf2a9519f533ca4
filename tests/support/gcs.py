"""A simulated Cloud Storage by itself, on a socket."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from tpuctl.sim.api.http import HttpServer
from tpuctl.sim.gcs.server import GcsApi


class AheadClock:
    """The time of this machine, and `ahead` seconds more."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


@contextmanager
def serving_gcs(root: Path, now: Callable[[], float] = time.time) -> Iterator[str]:
    """Its address; buckets are below `root`."""
    api = GcsApi(root, now=now)
    server = HttpServer(api.handle)
    server.start()
    try:
        yield server.endpoint
    finally:
        server.close()
        api.close()


def make_bucket(url: str, name: str = "bbb") -> None:
    made = requests.post(f"{url}/storage/v1/b?project=p", json={"name": name}, timeout=5)
    assert made.status_code == 200, made.text


def upload(url: str, name: str, content: bytes = b"x", bucket: str = "bbb", **query: str) -> requests.Response:
    """In one request unless `query` says otherwise."""
    where = f"{url}/upload/storage/v1/b/{bucket}/o"
    return requests.post(where, params={"name": name, "uploadType": "media", **query}, data=content, timeout=10)
