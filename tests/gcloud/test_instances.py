"""The real gcloud on single instances with TPUs, as users' recipes type it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.gcloud.test_real_gcloud import Gcloud
from tests.support.require import require_tool
from tpuctl.sim.server import control
from tpuctl.sim.server.options import SimOptions

pytestmark = [pytest.mark.gcloud, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

ZONE = "--zone=us-east5-a"
IMAGE = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
CREATE = (
    *("create", "one", ZONE, "--machine-type=ct6e-standard-4t", "--maintenance-policy=TERMINATE"),
    *("--provisioning-model=SPOT", "--instance-termination-action=STOP", "--no-shielded-secure-boot"),
    f"--create-disk=auto-delete=yes,boot=yes,size=50GB,type=hyperdisk-balanced,image={IMAGE}",
    *("--scopes=cloud-platform", "--metadata=enable-guest-attributes=TRUE"),
)


def test_an_instance_is_made_changed_preempted_and_deleted(tmp_path: Path) -> None:
    require_tool("gcloud")
    info = control.up(tmp_path / "state", SimOptions(delays="instant"))
    try:
        (tmp_path / "home").mkdir()
        gcloud = Gcloud(info, tmp_path / "home", shutil.which("gcloud") or "gcloud")

        def type_(*words: str) -> str:
            return gcloud.ok("compute", *words).strip()

        type_("instances", *CREATE)
        type_("disks", "create", "data", ZONE, "--size=10GB", "--type=hyperdisk-balanced")
        type_("instances", "attach-disk", "one", ZONE, "--disk=data", "--device-name=mine")
        type_("instances", "add-metadata", "one", ZONE, "--metadata=x=y")
        type_("instances", "add-labels", "one", ZONE, "--labels=c=d")
        keys = type_("instances", "get-guest-attributes", "one", ZONE, "--query-path=hostkeys/")
        assert "AAAAC3NzaC1lZDI1NTE5" in keys
        form = "--format=value(status,labels.c,disks[1].deviceName,scheduling.provisioningModel)"
        assert type_("instances", "describe", "one", ZONE, form).split() == ["RUNNING", "d", "mine", "SPOT"]
        control.act(info, "preempt", "one")
        kinds = "--filter=operationType=compute.instances.preempted"
        assert type_("operations", "list", kinds, "--format=value(user,status)").split() == [
            "system@google.com",
            "DONE",
        ]
        assert type_("instances", "list", "--format=value(name,status)").split() == ["one", "TERMINATED"]
        type_("instances", "delete", "one", ZONE, "--quiet")
        assert type_("disks", "list", "--format=value(name)") == "data"
    finally:
        control.down(tmp_path / "state")
