"""Labs of every tier of simulated hosts, simulators, and Cloud Storage with one of Google's clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from tests.support.gcs import AheadClock, make_bucket, serving_gcs
from tests.support.hosts import TIERS, Lab, open_lab, populate, require_tier
from tests.support.sim import RunningSim, running_sim


@pytest.fixture(params=TIERS)
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    require_tier(request.param)
    with open_lab(request.param, tmp_path) as lab:
        yield lab


@pytest.fixture
def lab(empty: Lab) -> Lab:
    return populate(empty)


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[RunningSim]:
    with running_sim(tmp_path) as running:
        yield running


@pytest.fixture
def clock() -> AheadClock:
    return AheadClock()


@pytest.fixture
def endpoint(tmp_path: Path, clock: AheadClock) -> Iterator[str]:
    """Of an empty Cloud Storage, whose content is in `gcs`."""
    with serving_gcs(tmp_path / "gcs", clock) as url:
        yield url


@pytest.fixture
def url(endpoint: str) -> str:
    """The same with the bucket `bbb`."""
    make_bucket(endpoint)
    return endpoint


@pytest.fixture
def client(endpoint: str) -> Iterator[storage.Client]:
    options = {"api_endpoint": endpoint}
    client = storage.Client(project="p1", credentials=AnonymousCredentials(), client_options=options)
    yield client
    client.close()


@pytest.fixture
def bucket(client: storage.Client) -> storage.Bucket:
    return client.create_bucket("team-bucket", location="us-central2")
