"""A run on a cluster whose commands are killed at any point, and what others do between two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kube.lab import Lab
from tests.support.crashing import STORE_CHANGES, Crash, Crashing, CrashPoint
from tests.support.kube_api import serve_kube
from tests.support.memory.services import MemoryPlace
from tests.support.soak import soak
from tpuctl.kube.client import connect
from tpuctl.model.clusters import ClusterPlace
from tpuctl.model.records import RunState
from tpuctl.provenance.parts import load_manifest
from tpuctl.runs.request import request_stop

pytestmark = pytest.mark.slow


def test_a_jobset_that_comes_between_a_look_and_its_own_is_not_taken_over(lab: Lab) -> None:
    lab.submit()
    read = lab.cluster.get

    def late(kind: str, name: str) -> Any:
        found = read(kind, name)
        lab.api.put("jobsets", "train", {"metadata": {"labels": {"tpuctl/run": "r1"}}})
        return found

    lab.cluster.get = late
    lab.settle()
    lab.settle()
    assert (lab.run.state, lab.api.changes) == (RunState.FAILED, [])


def whole_life(lab: Lab) -> None:
    """From the record to the end of a stop, with all that happens on the cluster in between."""
    if lab.run.attempt is None:
        lab.settle()
        lab.pods()
        lab.line(0, "a") if not lab.api.logs else None
    lab.settle()
    if not lab.run.state.final and lab.run.attempt and lab.run.attempt.number == 1 and not lab.run.stop_asked:
        lab.jobset(restarts=1)
        lab.pods(restart=1)
        lab.settle()
    request_stop(lab.services, "r1")
    lab.settle()


def changes_of_a_life(lab: Lab) -> int:
    point = CrashPoint()
    _arm(lab, point)
    whole_life(lab)
    return point.count


def _arm(lab: Lab, point: CrashPoint) -> Any:
    """Puts `point` before store and cluster; the cluster as it was."""
    cluster = lab.cluster
    lab.services.store = Crashing(lab.services.store, point, lambda name, _: name in STORE_CHANGES)
    lab.cluster = Crashing(cluster, point, lambda name, _: name in {"create", "delete"})
    return cluster


@pytest.mark.parametrize("after", [soak(False), True], ids=["before", "after"])
def test_a_crash_at_any_change_converges_and_leaves_nothing(
    lab: Lab, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.submit()
    count = changes_of_a_life(lab)
    assert count > 15
    for at in range(1, count + 1):
        with serve_kube() as api:
            path = api.write_kubeconfig(tmp_path / f"config-{at}")
            monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))
            place = MemoryPlace()
            again = Lab(place, api, connect(ClusterPlace("tpu", "default")))
            again.submit()
            cluster = _arm(again, CrashPoint(at, after=after))
            with pytest.raises(Crash):
                whole_life(again)
            again.services, again.cluster = place.machine(process=2), cluster
            whole_life(again)
            assert again.run.state is RunState.STOPPED, at
            assert api.names("jobsets") == [], at
            assert api.changes.count("delete jobsets/train") <= 2, at
            manifest = load_manifest(again.services, "r1")
            numbers = [row["number"] for row in manifest["attempts"]]
            assert numbers == sorted(set(numbers)), at
            assert manifest["end"]["state"] == "stopped", at
            place.close()
