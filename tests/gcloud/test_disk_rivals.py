"""gcloud changes the disks of a node between our look and our change: nothing of either is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.e2e.test_disk_lists import Overtaken
from tests.gcloud.test_real_gcloud import ZONE, Gcloud, create
from tests.gcloud.test_real_gcloud import gcloud as gcloud
from tests.support.services import SimServices, sim_services
from tpuctl.disks.attach import attach, detach
from tpuctl.model.disks import DataDisk, DiskMode

pytestmark = [pytest.mark.gcloud, pytest.mark.slow, pytest.mark.long]
ALPHA = ("alpha", "compute", "tpus", "tpu-vm")
A, B, C = (DataDisk(ZONE, name, DiskMode.READ_ONLY) for name in "abc")


@pytest.fixture(scope="module")
def node(gcloud: Gcloud) -> str:
    """With disk a."""
    for name in "abc":
        gcloud.ok("compute", "disks", "create", name, f"--zone={ZONE}", "--size=10GB", "--type=pd-balanced")
    create(gcloud, "box", "v4-8")
    return "box"


@pytest.fixture
def services(gcloud: Gcloud, node: str, tmp_path: Path) -> Iterator[SimServices]:
    """Of tpuctl, with the same cloud; the node has disk a at first."""
    sim: Any = SimpleNamespace(
        token=gcloud.info.token,
        endpoint=gcloud.info.http,
        ssh_port=gcloud.info.ssh_port,
        profile={"project": gcloud.info.project},
    )
    with sim_services(sim, tmp_path / "state") as made:
        attach(made, ZONE, [node], A)
        yield made
        for name in names(gcloud):
            detach(made, ZONE, [node], name)


def names(gcloud: Gcloud) -> list[str]:
    shown = json.loads(gcloud.tpu("tpu-vm", "describe", "box", "--format=json"))
    return sorted(each["sourceDisk"].rpartition("/")[2] for each in shown.get("dataDisks", []))


def change(gcloud: Gcloud, verb: str, disk: str) -> None:
    mode = ["--mode=read-only"] if verb == "attach-disk" else []
    gcloud.ok(*ALPHA, verb, "box", f"--zone={ZONE}", f"--disk={disk}", *mode)


def test_what_gcloud_attached_meanwhile_stays(gcloud: Gcloud, services: SimServices) -> None:
    services.cloud = Overtaken(services.cloud, lambda: change(gcloud, "attach-disk", "b"))
    attach(services, ZONE, ["box"], C)
    assert names(gcloud) == ["a", "b", "c"]


def test_a_stale_detach_takes_off_nothing_of_gclouds(gcloud: Gcloud, services: SimServices) -> None:
    def swap() -> None:
        change(gcloud, "detach-disk", "a")
        change(gcloud, "attach-disk", "b")

    services.cloud = Overtaken(services.cloud, swap)
    detach(services, ZONE, ["box"], "a")
    assert names(gcloud) == ["b"]
