"""What a host is asked to do about an image, by what it says of its engine."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tpuctl.containers.hosts import ROOM_BYTES, ContainerImage
from tpuctl.hosts.facts import Engine, EngineImage, FactsReply, HostJob
from tpuctl.hosts.provision import BlockedOnHost, Operation
from tpuctl.model.verdict import Blocked

NAME = "us-docker.pkg.dev/p/r/image"
DIGEST, OTHER = "sha256:" + "ab" * 32, "sha256:" + "cd" * 32
ID = "sha256:" + "11" * 32
THERE = EngineImage(ID, (f"{NAME}:1",), (f"{NAME}@{DIGEST}",), "amd64")
ENGINE = Engine("docker", "", "28.1", False, "amd64", "/var/lib/docker", ROOM_BYTES)
PULLED = HostJob("provision-big", "1", "exited", 0, results=({"pulled": f"{NAME}:1", "asked_by": "r1"},))


def facts(*images: EngineImage, jobs: tuple[HostJob, ...] = (), **engine: Any) -> FactsReply:
    return FactsReply(0.0, "boot", jobs=jobs, engine=replace(ENGINE, images=images, **engine))


def pulls(kind: ContainerImage, said: FactsReply) -> str:
    """What is pulled; empty where all is as asked."""
    planned = kind.plan(said)
    assert not isinstance(planned, Blocked)
    return "".join(str(each.parameters["image"]) for each in planned)


@pytest.mark.parametrize(
    ("kind", "images", "pulled"),
    [
        (ContainerImage(f"{NAME}:1"), (), f"{NAME}:1"),
        (ContainerImage(f"{NAME}:1"), (THERE,), ""),
        (ContainerImage(f"{NAME}:2"), (THERE,), f"{NAME}:2"),
        (ContainerImage(f"{NAME}:1", f"{NAME}@{DIGEST}"), (THERE,), ""),
        (ContainerImage(f"{NAME}:1", f"{NAME}@{OTHER}"), (THERE,), f"{NAME}@{OTHER}"),
        (ContainerImage(f"{NAME}@{OTHER}"), (THERE,), f"{NAME}@{OTHER}"),
        (ContainerImage(f"{NAME}:1", asked_by="r1", anew=True), (THERE,), f"{NAME}:1"),
        (ContainerImage("bb:1", ID), (THERE,), ""),
        (ContainerImage("bb:1"), (EngineImage(ID, ("localhost/bb:1",)),), ""),
        (ContainerImage("ubuntu"), (EngineImage(ID, ("docker.io/library/ubuntu:latest",)),), ""),
        (
            ContainerImage("docker.io/library/bb:1"),
            (EngineImage(ID, ("localhost/bb:1",)),),
            "docker.io/library/bb:1",
        ),
    ],
)
def test_a_host_pulls_what_it_does_not_have(
    kind: ContainerImage, images: tuple[EngineImage, ...], pulled: str
) -> None:
    assert pulls(kind, facts(*images)) == pulled


def test_an_image_is_pulled_anew_once_for_a_run() -> None:
    kind = ContainerImage(f"{NAME}:1", asked_by="r1", anew=True)
    assert pulls(kind, facts(THERE, jobs=(PULLED,))) == ""
    assert pulls(replace(kind, asked_by="r2"), facts(THERE, jobs=(PULLED,))) == f"{NAME}:1"
    failed = replace(PULLED, exit_status=1)
    assert pulls(kind, facts(THERE, jobs=(failed,))) == f"{NAME}:1"


@pytest.mark.parametrize(
    ("kind", "there", "pin"),
    [
        (ContainerImage(f"{NAME}:1"), THERE, f"{NAME}@{DIGEST}"),
        (ContainerImage(f"{NAME}:1", f"{NAME}@{DIGEST}"), THERE, f"{NAME}@{DIGEST}"),
        (ContainerImage(f"{NAME}:9@{DIGEST}"), THERE, f"{NAME}@{DIGEST}"),
        (ContainerImage("bb:1"), EngineImage(ID, ("localhost/bb:1",), (f"localhost/bb@{OTHER}",)), ID),
        (ContainerImage("bb:1"), EngineImage(ID, ("bb:1",)), ID),
        (
            ContainerImage("ubuntu"),
            EngineImage(ID, ("ubuntu:latest",), (f"other@{OTHER}", f"ubuntu@{DIGEST}")),
            f"ubuntu@{DIGEST}",
        ),
    ],
)
def test_an_image_is_known_by_the_digest_of_its_registry_else_by_its_content(
    kind: ContainerImage, there: EngineImage, pin: str
) -> None:
    assert kind.row(facts(there)) == {"image": pin, "image_id": ID, "engine": "docker 28.1"}


@pytest.mark.parametrize(
    ("kind", "said", "why", "hint"),
    [
        (
            ContainerImage(NAME),
            facts(name="", why=""),
            "neither docker nor podman",
            "apt-get install -y docker.io",
        ),
        (
            ContainerImage(NAME),
            facts(name="", why="docker: permission denied while trying to connect to the Docker daemon socket"),
            "permission denied",
            "roles/compute.osAdminLogin",
        ),
        (
            ContainerImage(NAME),
            facts(name="", why="docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock"),
            "Cannot connect",
            "systemctl restart docker",
        ),
        (
            ContainerImage(NAME),
            facts(free_bytes=ROOM_BYTES - 1, rooted=True),
            "are free at /var/lib/docker",
            "sudo docker image prune",
        ),
        (
            ContainerImage(f"{NAME}:1"),
            facts(replace(THERE, architecture="arm64")),
            "is for arm64, and its hosts are amd64",
            "--platform linux/amd64",
        ),
        (ContainerImage("bb:1", OTHER), facts(THERE), "that the first worker has", "push it to a registry"),
    ],
)
def test_what_cannot_be_is_said_with_what_helps(
    kind: ContainerImage, said: FactsReply, why: str, hint: str
) -> None:
    planned = kind.plan(said)
    assert isinstance(planned, Blocked)
    command = planned.command if isinstance(planned, BlockedOnHost) else ""
    assert why in planned.why
    assert hint in f"{planned.hint} {command}"


def test_a_digest_that_is_pulled_is_the_same_operation_on_all_hosts() -> None:
    kind = ContainerImage(f"{NAME}:1", f"{NAME}@{DIGEST}")
    parameters = {"image": f"{NAME}@{DIGEST}", "asked_by": ""}
    assert kind.plan(facts()) == [Operation("pull_image", f"pulling {NAME}@{DIGEST}", parameters)]
