"""Slices of Compute Engine in a world in memory: what is asked for, what there is of them, and their ends."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.support.jobs import SPEC
from tests.support.memory.services import MemoryPlace
from tpuctl.model.cloud import Api

ZONE = "us-central1-c"
FAMILY = "ubuntu-accel-2404-amd64-tpu-tpu7x"
OWNER = {"tpuctl-slice": "big", "tpuctl-incarnation": "1", "tpuctl-store": "ab12", "tpuctl-user": "ada"}
GROUP: dict[str, Any] = {
    "accelerator_type": "tpu7x-16",
    "zone": ZONE,
    "runtime_version": FAMILY,
    "hosts": 2,
    "chips": 8,
    "queued": False,
    "api": Api.COMPUTE,
    "machine_type": "tpu7x-standard-4t",
    "topology": "2x2x2",
    "boot_disk_gib": 100,
}
"""What differs from the specification of a slice by the TPU API."""
INSTANCE = {**GROUP, "accelerator_type": "tpu7x-8", "hosts": 1, "chips": 4, "topology": "2x2x1"}
SPECS = {"group": replace(SPEC, **GROUP), "instance": replace(SPEC, **INSTANCE)}
OWNED = replace(
    SPECS["group"],
    labels={"team": "vision", **OWNER},
    metadata={"ssh-keys": "tpuctl:ssh-ed25519 AAAA"},
)
"""A group as it is asked of the cloud: with its owner's marks and a key."""
OF_A_GROUP = ("resourcePolicies", "instanceTemplates", "instanceGroupManagers")
KINDS = (*OF_A_GROUP, "instances", "disks")


def objects(place: MemoryPlace) -> dict[str, list[str]]:
    """The names of all that the project has of each kind, and none of a kind of which there is nothing."""
    found: dict[str, list[str]] = {}
    for kind in KINDS:
        answer = place.machine("server").compute_tpus.rest.get(
            f"/compute/v1/projects/{place.world.options.project}/aggregated/{kind}", f"list {kind}"
        )
        names = sorted(item["name"] for scope in answer["items"].values() for item in scope.get(kind, ()))
        if names:
            found[kind] = names
    return found


def objects_of(name: str, hosts: int) -> dict[str, list[str]]:
    """What there is of a slice that is whole; boot disks are called like their instances."""
    members = [f"{name}-w-{number:03}" for number in range(1, hosts + 1)] if hosts > 1 else [name]
    own = {key: [name] for key in OF_A_GROUP} if hosts > 1 else {}
    return {**own, "instances": members, "disks": members}


def preempt(place: MemoryPlace, name: str, action: str) -> None:
    """Takes the first host of a slice away: it is STOP: stopped, or DELETE: gone."""
    host = min(
        (each for each in place.compute.instances.all() if each.path.id.startswith(name)),
        key=lambda each: each.path.id,
    )
    host.data["scheduling"]["instanceTerminationAction"] = action
    place.compute.instances.life.preempt(host)
