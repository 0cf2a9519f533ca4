"""A node's list of data disks, when somebody else changes it between our look and our change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.services import SimServices, sim_services
from tests.support.sim import RunningSim, running_sim
from tpuctl.disks.attach import attach, detach, merge
from tpuctl.model.disks import DataDisk, DiskMode

ZONE = "us-central2-b"
NODE = f"projects/sim-project/locations/{ZONE}/nodes/box"
A, B, C = (DataDisk(ZONE, name, DiskMode.READ_ONLY) for name in "abc")


@pytest.mark.parametrize(
    ("base", "now", "theirs", "wanted"),
    [
        ((), (A,), (), (A,)),
        ((), (A,), (B,), (A, B)),
        ((A,), (A, B), (A, C), (A, B, C)),
        ((A, C), (A, B, C), (A,), (A, B)),
        ((A,), (), (A,), ()),
        ((A,), (A, C), (A, C), (A, C)),
    ],
)
def test_what_others_added_and_removed_is_kept(base: Any, now: Any, theirs: Any, wanted: Any) -> None:
    assert merge(base, now, theirs) == wanted


class Overtaken:
    """The cloud, in which somebody does something right before our change arrives."""

    def __init__(self, inner: Any, meanwhile: Callable[[], None]) -> None:
        self._inner = inner
        self._meanwhile = [meanwhile]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def set_data_disks(self, *arguments: Any) -> Any:
        while self._meanwhile:
            self._meanwhile.pop()()
        return self._inner.set_data_disks(*arguments)


class Box:
    """One node and three disks, and somebody who speaks to the API without tpuctl."""

    def __init__(self, sim: RunningSim, services: SimServices) -> None:
        self.sim = sim
        self.services = services
        for disk in "abc":
            self.call(
                "POST", f"/compute/v1/projects/sim-project/zones/{ZONE}/disks", {"name": disk, "sizeGb": "10"}
            )
        spec = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
        self.call("POST", f"/v2/projects/sim-project/locations/{ZONE}/nodes?nodeId=box", spec)
        sim.world.settle()

    def call(self, verb: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.sim.token}"}
        answer = requests.request(verb, f"{self.sim.endpoint}{path}", json=body, headers=headers, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def set(self, *disks: str) -> None:
        """As gcloud does it: the whole list."""
        listed = [
            {"sourceDisk": f"projects/sim-project/zones/{ZONE}/disks/{each}", "mode": "READ_ONLY"}
            for each in disks
        ]
        self.call("PATCH", f"/v2/{NODE}?updateMask=data_disks", {"name": NODE, "dataDisks": listed})
        self.sim.world.settle()

    def names(self) -> list[str]:
        found = self.call("GET", f"/v2/{NODE}").get("dataDisks", [])
        return [each["sourceDisk"].rpartition("/")[2] for each in found]

    def overtaken_by(self, *disks: str) -> SimServices:
        self.services.cloud = Overtaken(self.services.cloud, lambda: self.set(*disks))
        return self.services


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with running_sim(tmp_path) as sim, sim_services(sim, tmp_path / "state") as services:
        yield Box(sim, services)


def test_a_disk_that_somebody_else_attached_meanwhile_stays(box: Box) -> None:
    box.set("a")
    attach(box.overtaken_by("a", "b"), ZONE, ["box"], C)
    assert sorted(box.names()) == ["a", "b", "c"]


def test_a_disk_that_somebody_else_detached_meanwhile_stays_away(box: Box) -> None:
    box.set("a", "b")
    attach(box.overtaken_by("a"), ZONE, ["box"], C)
    assert sorted(box.names()) == ["a", "c"]


def test_a_detach_removes_its_own_disk_only(box: Box) -> None:
    box.set("a")
    detach(box.overtaken_by("a", "b"), ZONE, ["box"], "a")
    assert box.names() == ["b"]


def test_what_is_done_already_changes_nothing(box: Box) -> None:
    box.set("a")
    before = len(box.sim.world.journal.entries())
    attach(box.services, ZONE, ["box"], A)
    detach(box.services, ZONE, ["box"], "b")
    assert len(box.sim.world.journal.entries()) == before
