"""Real gcloud and tpuctl change the throughput of a disk by the same method."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gcloud.test_real_gcloud import Gcloud
from tests.gcloud.test_real_gcloud import gcloud as gcloud
from tests.support.services import sim_services

pytestmark = [pytest.mark.gcloud, pytest.mark.slow, pytest.mark.long]
ZONE = "us-east5-b"


def test_gcloud_and_tpuctl_agree_on_a_change_of_throughput(gcloud: Gcloud, tmp_path: Path) -> None:
    where = f"--zone={ZONE}"
    for name in ("by-gcloud", "by-tpuctl"):
        kind = ("--size=10GB", "--type=hyperdisk-ml", "--provisioned-throughput=400")
        gcloud.ok("compute", "disks", "create", name, where, *kind)
    gcloud.ok("compute", "disks", "update", "by-gcloud", where, "--provisioned-throughput=800")
    sim: Any = SimpleNamespace(
        token=gcloud.info.token,
        endpoint=gcloud.info.http,
        ssh_port=gcloud.info.ssh_port,
        profile={"project": gcloud.info.project},
    )
    with sim_services(sim, tmp_path / "state") as services:
        services.disks.set_throughput(ZONE, "by-tpuctl", 800)
        seen = services.disks.find_disk(ZONE, "by-gcloud")
    assert seen is not None
    assert seen.throughput_mib_s == 800
    shown = json.loads(gcloud.ok("compute", "disks", "describe", "by-tpuctl", where, "--format=json"))
    assert shown["provisionedThroughput"] == "800"
    again = gcloud.run("compute", "disks", "update", "by-tpuctl", where, "--provisioned-throughput=900")
    assert again.returncode == 1
    assert "once every 6 hours" in again.stderr
