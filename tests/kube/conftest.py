"""A machine, a cluster in memory and a run, for tests that play the part of JobSet, Kueue and kubelets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.lab import Lab
from tests.support.kube_api import serve_kube
from tests.support.memory.services import MemoryPlace
from tpuctl.kube.client import connect
from tpuctl.model.clusters import ClusterPlace


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    with serve_kube() as api:
        path = api.write_kubeconfig(tmp_path / "config")
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
        place = MemoryPlace()
        try:
            yield Lab(place, api, connect(ClusterPlace("tpu", "default")))
        finally:
            place.close()
