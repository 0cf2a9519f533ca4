"""A group that the real gcloud made, as Google's page has it, becomes a slice and goes as one."""

from __future__ import annotations

import pytest

from tests.gcloud.test_real_gcloud import Gcloud
from tests.support.require import require_tool
from tests.support.session import open_session

pytestmark = [pytest.mark.gcloud, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

ZONE, REGION = "us-central1-c", "us-central1"
IMAGE = ("--image-family=ubuntu-accel-2404-amd64-tpu-tpu7x", "--image-project=ubuntu-os-accelerator-images")


def test_a_group_of_google_s_page_is_adopted_used_and_taken_down() -> None:
    """https://docs.cloud.google.com/compute/docs/tpus/create-tpu-mig-multi-host-slice, with other names."""
    binary = require_tool("gcloud")
    with open_session() as session:
        info = session.sim()
        gcloud = Gcloud(info, session.root, binary)
        above = f"projects/{info.project}/regions/{REGION}"
        groups = ("compute", "instance-groups", "managed")
        topology = ("--type=high-throughput", "--accelerator-topology=2x2x2", f"--region={REGION}")
        gcloud.ok("compute", "resource-policies", "create", "workload-policy", "ici", *topology)
        gcloud.ok(
            *(
                "compute",
                "instance-templates",
                "create",
                "base",
                f"--instance-template-region={REGION}",
                *IMAGE,
            ),
            *("--machine-type=tpu7x-standard-4t", "--maintenance-policy=TERMINATE", "--scopes=cloud-platform"),
            *("--boot-disk-size=100GB", "--boot-disk-type=hyperdisk-balanced"),
            "--metadata=enable-guest-attributes=TRUE",
        )
        gcloud.ok(
            *(
                "alpha",
                *groups,
                "create",
                "mine",
                f"--zone={ZONE}",
                "--size=2",
                "--target-size-policy-mode=bulk",
            ),
            *(f"--template={above}/instanceTemplates/base", f"--workload-policy={above}/resourcePolicies/ici"),
            "--default-action-on-vm-failure=do-nothing",
        )
        gcloud.ok(*groups, "wait-until", "mine", f"--zone={ZONE}", "--stable", "--timeout=60")
        session.type("adopt", "mine", "--zone", ZONE, "--add-key", "--pay", "--yes")
        shown = session.json("status", "mine")
        assert (shown["state"], shown["type"], shown["hosts"], shown["api"]) == (
            "ready",
            "tpu7x-16",
            2,
            "compute",
        )
        assert session.type("exec", "mine", "--", "hostname").stdout.count("│ mine-") == 2
        down = session.type("down", "mine", "--yes").stderr
        for kind, name in (("instance-templates", "base"), ("resource-policies", "ici")):
            assert f"gcloud compute {kind} delete {name} --region {REGION}" in " ".join(down.split())
            gcloud.ok("compute", kind, "delete", name, f"--region={REGION}", "--quiet")
        assert gcloud.ok("compute", "instances", "list", "--format=value(name)") == ""
