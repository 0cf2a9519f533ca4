"""tpuctl's own cloud adapters read what Google's servers answered: every call that has a recording.

The adapters are the real ones and speak HTTP; only the server gives answers out of `answers/`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

from tests.recorded.stories import EVIDENCE, Exchange, exchange, stories
from tests.support.replay import replaying
from tpuctl.cloud.disks import GoogleDisks, GoogleInventory
from tpuctl.cloud.project import GoogleProject
from tpuctl.cloud.storage import GoogleObjects
from tpuctl.cloud.tpu import GoogleCloud
from tpuctl.engine import cloud_ports
from tpuctl.errors import (
    ConflictError,
    DeniedError,
    InvalidRequestError,
    NotFoundError,
    QuotaError,
    TpuctlError,
)
from tpuctl.model.cloud import Api, NodeState, QueuedState, ResourceKind, Tier
from tpuctl.model.disks import ComputeOperation, DiskRequest
from tpuctl.model.slice_spec import SliceSpec

ZONE = "us-central1-a"
PLAIN = "tpuvirtualmachine-minimal-x1y2z3"


class Client:
    """The five ports that ask Google, against one server."""

    def __init__(self, endpoint: str, project: str) -> None:
        credentials = Credentials(token="t")
        places = ("resource_manager", "service_usage", "compute", "quotas", "tpu", "storage")
        self.cloud: cloud_ports.TpuApi = GoogleCloud(project, endpoint, credentials)
        self.disks: cloud_ports.Disks = GoogleDisks(project, endpoint, credentials)
        self.inventory: cloud_ports.Inventory = GoogleInventory(project, endpoint, endpoint, credentials)
        self.objects: cloud_ports.Objects = GoogleObjects(project, endpoint, credentials)
        self.project: cloud_ports.ProjectApi = GoogleProject(
            project, lambda: credentials, **dict.fromkeys(places, endpoint)
        )


PORTS: Mapping[str, type] = {
    "cloud": cloud_ports.TpuApi,
    "disks": cloud_ports.Disks,
    "inventory": cloud_ports.Inventory,
    "objects": cloud_ports.Objects,
    "project": cloud_ports.ProjectApi,
}
"""Attribute of the client → the protocol behind it."""


@dataclass(frozen=True)
class Refusal:
    """The error that a call ends with: its class, a part of its message and of its hint."""

    kind: type[TpuctlError]
    message: str
    hint: str = ""


@dataclass(frozen=True)
class Case:
    """A call of a port (`cloud.find_node`), the answers that it gets, and what it makes of them.

    `sees` are fields of what is returned; `returns` the whole of it.
    """

    port: str
    answers: Sequence[str]
    call: Callable[[Client], Any]
    sees: Mapping[str, Any] | None = None
    returns: Any = None
    refusal: Refusal | None = None

    @property
    def name(self) -> str:
        return f"{self.port}<-{'+'.join(self.answers)}"


def request(name: str, **changes: Any) -> tuple[str, SliceSpec]:
    """Id and specification of what is created."""
    values: dict[str, Any] = {
        **{
            "hosts": 1,
            "chips": 4,
            "zone": ZONE,
            "accelerator_type": "v5p-8",
            "runtime_version": "tpu-vm-cos-stable",
        },
        **{"tier": Tier.ON_DEMAND, "labels": {}, "metadata": {}},
    }
    return name, SliceSpec(**{**values, **changes})


def operation(answer: str) -> str:
    return str(exchange(answer).body["name"])


def ended(answer: str, *, code: int | None = None) -> Case:
    """An operation asked for by name."""
    name = operation(answer)

    def look(client: Client) -> Any:
        found = client.cloud.find_operation(name)
        assert found is not None
        return found.name, found.done, found.error.code if found.error else None

    return Case("cloud.find_operation", [answer], look, returns=(name, True, code))


def of_compute(answer: str, *, done: bool) -> ComputeOperation:
    """An operation of Compute Engine, found again by its own link."""
    body = exchange(answer).body
    path = "/compute/v1/" + str(body["selfLink"]).partition("/compute/v1/")[2]
    return ComputeOperation(path, done, progress=int(body["progress"]))


def refused(answer: str, kind: type[TpuctlError], message: str, hint: str = "", **changes: Any) -> Case:
    """A create that is refused."""
    node = answer.partition(":")[0] != "tpu/refused_field"
    sent = {"name": "example", "zone": exchange(answer).path.split("/")[5], **changes}
    port = "cloud.create_node" if node else "cloud.create_queued"

    def ask(client: Client) -> Any:
        create = client.cloud.create_node if node else client.cloud.create_queued
        return create(*request(**({**sent, "name": "qr"} if not node else sent)))

    return Case(port, [answer], ask, refusal=Refusal(kind, message, hint))


CASES: Sequence[Case] = (
    # Nodes and their operations.
    Case(
        "cloud.create_node",
        ["tpu/node:create"],
        lambda c: c.cloud.create_node(*request("test-x1y2z3", network="default")),
        sees={"name": operation("tpu/node:create"), "done": False, "error": None},
    ),
    Case(
        "cloud.create_node",
        ["tpu/node_without_network:create"],
        lambda c: c.cloud.create_node(*request(PLAIN)),
        sees={"name": operation("tpu/node_without_network:create"), "done": False},
    ),
    *(
        ended(f"tpu/{story}:{label}")
        for story in ("node", "node_without_network")
        for label in ("created", "patched", "deleted")
    ),
    ended("tpu/stockout:failed", code=8),
    ended("tpu/reserved_capacity:failed", code=8),
    Case(
        "cloud.find_node",
        ["tpu/node:get"],
        lambda c: c.cloud.find_node(ZONE, "test-x1y2z3"),
        sees={
            **{"name": "test-x1y2z3", "zone": ZONE, "state": NodeState.READY, "health": "HEALTHY"},
            **{"accelerator_type": "v5p-8", "runtime_version": "tpu-vm-cos-stable", "tier": Tier.ON_DEMAND},
            **{"endpoints.0.internal_ip": "10.20.30.40", "endpoints.0.external_ip": "8.8.8.8"},
            **{"labels": {}, "metadata": {}, "queued_resource": None},
        },
    ),
    Case(
        "cloud.find_node",
        ["tpu/node_without_network:get"],
        lambda c: c.cloud.find_node(ZONE, PLAIN),
        sees={"endpoints.0.internal_ip": "10.20.30.40", "endpoints.0.external_ip": None},
    ),
    Case(
        "cloud.find_node",
        ["tpu/node_without_network:absent"],
        lambda c: c.cloud.find_node(ZONE, PLAIN),
    ),
    Case(
        "cloud.update_node",
        ["tpu/node:patch"],
        lambda c: c.cloud.update_node(ZONE, "test-x1y2z3", labels={}, metadata={}),
        sees={"name": operation("tpu/node:patch"), "done": False},
    ),
    Case(
        "cloud.update_node",
        ["tpu/node_without_network:patch"],
        lambda c: c.cloud.update_node(ZONE, PLAIN, labels={}),
        sees={"name": operation("tpu/node_without_network:patch"), "done": False},
    ),
    Case(
        "cloud.update_node",
        ["tpu/conflict:patch"],
        lambda c: c.cloud.update_node(ZONE, "test-x1y2z3", labels={}, metadata={}),
        refusal=Refusal(TpuctlError, "unable to queue the operation"),
    ),
    Case(
        "cloud.delete_node",
        ["tpu/node:delete"],
        lambda c: c.cloud.delete_node(ZONE, "test-x1y2z3"),
        sees={"name": operation("tpu/node:delete"), "done": False},
    ),
    Case(
        "cloud.delete_node",
        ["tpu/node_without_network:delete"],
        lambda c: c.cloud.delete_node(ZONE, PLAIN),
        sees={"name": operation("tpu/node_without_network:delete"), "done": False},
    ),
    Case(
        "cloud.list_nodes",
        ["tpu/node_list:list"],
        lambda c: c.cloud.list_nodes(),
        sees={"items.0.name": PLAIN, "items.0.zone": ZONE, "unreachable": frozenset({"us-east1-d"})},
    ),
    Case(
        "cloud.list_host_keys",
        ["tpu/guest_attributes:all"],
        lambda c: c.cloud.list_host_keys(ZONE, "test-x1y2z3"),
        sees={
            "0.worker": 0,
            "0.public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO7xxQf0OyrqVBN1CpQJsyUzkbLSVVDkB3c5jS0vAzJb",
            "0.hostname": "t1v-n-9472280f-w-0",
        },
    ),
    Case(
        "cloud.list_offers",
        ["tpu/types_and_versions:types"],
        lambda c: c.cloud.list_offers("us-central2-b"),
        sees={"0.name": "v4-8", "0.config_type": "V4", "0.topology": "2x2x1"},
    ),
    # Creates that are refused, at once and later.
    refused("tpu/refused_field:create", InvalidRequestError, 'Unknown name "networkConfigs"'),
    refused("tpu/refused_location:create", DeniedError, "Permission denied on 'locations/us-central2-b'"),
    refused("tpu/refused_type:create", InvalidRequestError, "the accelerator v5litepod-8 was not found"),
    refused("tpu/refused_quota:create", QuotaError, "Limit: 0 in region us-east5"),
    refused(
        "tpu/refused_quota_twice:create", QuotaError, "Limit: 0,0 in region us-central1,zone us-central1-a"
    ),
    Case(
        "cloud.create_node",
        ["tpu/stockout:create"],
        lambda c: c.cloud.create_node(*request("example", zone="us-central1-c")),
        sees={"name": operation("tpu/stockout:create"), "done": False},
    ),
    Case(
        "cloud.create_node",
        ["tpu/reserved_capacity:create"],
        lambda c: c.cloud.create_node(*request("example")),
        sees={"name": operation("tpu/reserved_capacity:create"), "done": False},
    ),
    # Queued resources.
    Case(
        "cloud.find_queued",
        ["tpu/queued_resource:get"],
        lambda c: c.cloud.find_queued("us-east5-a", "your-queued-resource-id"),
        sees={
            **{"name": "your-queued-resource-id", "zone": "us-east5-a", "state": QueuedState.ACTIVE},
            **{"node_ids": ("your-node-id",), "accelerator_type": "v6e-4", "tier": Tier.ON_DEMAND},
            **{"labels": {}, "error": None, "initiator": ""},
        },
    ),
    Case(
        "cloud.find_queued",
        ["tpu/queued_quota:get"],
        lambda c: c.cloud.find_queued("us-central2-b", "example"),
        sees={"state": QueuedState.FAILED, "error.code": 8, "node_ids": ("example",)},
    ),
    Case(
        "cloud.create_queued",
        ["tpu/queued_calls:create"],
        lambda c: c.cloud.create_queued(*request("example", tier=Tier.SPOT)),
        sees={"name": operation("tpu/queued_calls:create"), "done": False},
    ),
    Case(
        "cloud.list_queued",
        ["tpu/queued_calls:list"],
        lambda c: c.cloud.list_queued(),
        sees={"items.0.name": "example", "items.0.tier": Tier.SPOT, "items.0.state": QueuedState.ACTIVE},
    ),
    Case(
        "cloud.delete_queued",
        ["tpu/queued_calls:delete"],
        lambda c: c.cloud.delete_queued(ZONE, "example"),
        sees={"name": operation("tpu/queued_calls:delete"), "done": False},
    ),
    Case(
        "cloud.delete_queued",
        ["tpu/delete_refused:delete"],
        lambda c: c.cloud.delete_queued("us-central1-b", "example"),
        refusal=Refusal(TpuctlError, "not in a deletable state"),
    ),
    # What a project holds.
    Case(
        "inventory.list_assets",
        ["compute/aggregated_disks:list"],
        lambda c: c.inventory.list_assets(ResourceKind.DISK),
        sees={
            **{"items.0.name": "disk-1", "items.0.location": ZONE, "items.0.type": "pd-balanced"},
            **{"items.0.size_gib": 32.0, "items.0.state": "READY", "items.0.used_by": ()},
            "unreachable": frozenset(),
        },
    ),
    Case(
        "inventory.list_assets",
        ["compute/aggregated_instances:list"],
        lambda c: c.inventory.list_assets(ResourceKind.INSTANCE),
        sees={
            **{"items.0.name": "test-ingwar", "items.0.type": "n1-standard-1", "items.0.state": "TERMINATED"},
            "unreachable": frozenset(),
        },
    ),
    Case(
        "inventory.list_assets",
        ["compute/aggregated_addresses:list"],
        lambda c: c.inventory.list_assets(ResourceKind.ADDRESS),
        sees={"items.0.name": "new1", "items.0.location": "us-central1", "items.0.state": "RESERVED"},
    ),
    Case(
        "inventory.list_assets",
        ["storage/bucket:list", "storage/upload:empty"],
        lambda c: [(b.name, b.location, b.state) for b in c.inventory.list_assets(ResourceKind.BUCKET).items],
        returns=[("gcsfs-testing", "us", "empty")],
    ),
    # Disks and snapshots.
    Case(
        "disks.create_disk",
        ["compute/disk:insert"],
        lambda c: c.disks.create_disk(DiskRequest("disk-x1y2z3", ZONE, "pd-standard", 500, {}), "k"),
        returns=of_compute("compute/disk:insert", done=False),
    ),
    Case(
        "disks.find_disk",
        ["compute/disk:get"],
        lambda c: c.disks.find_disk(ZONE, "disk-x1y2z3"),
        sees={"name": "disk-x1y2z3", "zone": ZONE, "type": "pd-standard", "size_gib": 500, "status": "READY"},
    ),
    Case(
        "disks.delete_disk",
        ["compute/disk:delete"],
        lambda c: c.disks.delete_disk(ZONE, "disk-x1y2z3"),
        returns=of_compute("compute/disk:delete", done=False),
    ),
    Case(
        "disks.list_disks",
        ["compute/aggregated_disks:list"],
        lambda c: [(d.zone, d.status) for d in c.disks.list_disks().items],
        returns=[("us-central1-a", "READY"), ("us-central1-a", "READY")],
    ),
    Case(
        "disks.create_snapshot",
        ["compute/snapshot:create"],
        lambda c: c.disks.create_snapshot(ZONE, "disk-s1y2z3", "snapshot-x1y2z3", {}, "k"),
        returns=of_compute("compute/snapshot:create", done=False),
    ),
    Case(
        "disks.find_operation",
        ["compute/snapshot:created"],
        lambda c: c.disks.find_operation(of_compute("compute/snapshot:create", done=False)),
        returns=of_compute("compute/snapshot:created", done=True),
    ),
    Case(
        "disks.find_snapshot",
        ["compute/snapshot:get"],
        lambda c: c.disks.find_snapshot("snapshot-x1y2z3"),
        sees={"status": "READY", "disk_gib": 500, "stored_bytes": 0, "source_disk": "disk-s1y2z3"},
    ),
    Case(
        "disks.find_snapshot",
        ["compute/snapshot:absent"],
        lambda c: c.disks.find_snapshot("snapshot-x1y2z3"),
        returns=None,
    ),
    Case(
        "disks.delete_snapshot",
        ["compute/snapshot:delete"],
        lambda c: c.disks.delete_snapshot("snapshot-x1y2z3"),
        returns=of_compute("compute/snapshot:delete", done=False),
    ),
    Case(
        "project.project_info",
        ["compute/project:get"],
        lambda c: c.project.project_info(),
        sees={"metadata.enable-oslogin": "true", "quotas.0.metric": "SNAPSHOTS", "quotas.0.limit": 1000},
    ),
    Case(
        "project.network",
        ["compute/network:get"],
        lambda c: c.project.network("network-x1y2z3"),
        returns="network-x1y2z3",
    ),
    Case(
        "project.region_quotas",
        ["compute/region:get"],
        lambda c: [(q.metric, q.limit, q.usage, q.region) for q in c.project.region_quotas("us-central1")],
        returns=[
            ("CPUS", 1050, 30, "us-central1"),
            ("DISKS_TOTAL_GB", 20000, 344, "us-central1"),
            ("IN_USE_ADDRESSES", 1050, 11, "us-central1"),
        ],
    ),
    Case(
        "project.list_services",
        ["service_usage/services:list"],
        lambda c: c.project.list_services(),
        returns=frozenset({"bigquery.googleapis.com", "bigquerystorage.googleapis.com"}),
    ),
    Case(
        "project.granted_permissions",
        ["resource_manager/permissions_v3:test"],
        lambda c: c.project.granted_permissions(["tpu.nodes.create"]),
        returns=frozenset({"tpu.nodes.create"}),
    ),
    Case(
        "project.tpu_quotas",
        ["cloud_quotas/quota_infos:list"],
        lambda c: sorted((q.location, q.limit, q.generation) for q in c.project.tpu_quotas(Api.TPU)),
        returns=[("us-east5-a", 0, "v6e"), ("us-east5-b", 8, "v6e"), ("us-east5-c", 0, "v6e")],
    ),
    Case(
        "project.tpu_quotas",
        ["cloud_quotas/quota_infos:machines"],
        lambda c: [(q.location, q.limit, q.generation) for q in c.project.tpu_quotas(Api.COMPUTE)],
        returns=[("us-south1", 32, "v6e")],
    ),
    # Buckets and objects.
    Case(
        "project.bucket_place",
        ["storage/bucket:get"],
        lambda c: c.project.bucket_place("test-x1y2z3"),
        sees={"location": "US", "kind": "multi-region", "regions": ()},
    ),
    Case(
        "project.bucket_place",
        ["storage/no_bucket:get"],
        lambda c: c.project.bucket_place("storagebucket-sample-x1y2z3"),
        refusal=Refusal(NotFoundError, "The specified bucket does not exist"),
    ),
    Case(
        "project.bucket_settings",
        ["storage/bucket_dated:get"],
        lambda c: c.project.bucket_settings("c7n-bucket"),
        sees={"storage_class": "STANDARD", "soft_delete_s": 604800.0, "versioning": False, "deletions": ()},
    ),
    Case(
        "project.bucket_permissions",
        ["storage/permissions:test"],
        lambda c: c.project.bucket_permissions(
            "gcsfs-testing", ["storage.objects.get", "storage.objects.create"]
        ),
        returns=frozenset({"storage.objects.get", "storage.objects.create"}),
    ),
    Case(
        "objects.bucket_exists",
        ["storage/bucket:get"],
        lambda c: c.objects.bucket_exists("test-x1y2z3"),
        returns=True,
    ),
    Case(
        "objects.bucket_exists",
        ["storage/no_bucket:get"],
        lambda c: c.objects.bucket_exists("storagebucket-sample-x1y2z3"),
        returns=False,
    ),
    Case(
        "objects.server_time",
        ["storage/bucket_dated:get"],
        lambda c: c.objects.server_time("c7n-bucket"),
        returns=1770390947.0,
    ),
    Case(
        "objects.list",
        ["storage/objects:list"],
        lambda c: [(o.name, o.generation, o.size) for o in c.objects.list("gs://gcsfs-testing/nested/")],
        returns=[("nested/file1", 1573660280825999, 6), ("nested/file2", 1573660281188014, 5)],
    ),
    Case(
        "objects.list",
        ["storage/upload:empty"],
        lambda c: c.objects.list("gs://gcsfs-testing/"),
        returns=(),
    ),
    Case(
        "objects.write",
        ["storage/upload:finish"],
        lambda c: c.objects.write("gs://gcsfs-testing/test", b"zz"),
        returns=1573660175031862,
    ),
    Case(
        "objects.read",
        ["storage/upload:read"],
        lambda c: c.objects.read("gs://gcsfs-testing/test"),
        returns=(b"zz", 1573660175031862),
    ),
    Case(
        "objects.write",
        ["storage/precondition:write"],
        lambda c: c.objects.write("gs://gcsfs-testing/test", b"zz", if_generation=0),
        refusal=Refusal(ConflictError, "pre-conditions"),
    ),
    Case(
        "objects.delete",
        ["storage/objects:delete"],
        lambda c: c.objects.delete("gs://gcsfs-testing/nested/file1"),
    ),
    Case(
        "objects.delete",
        ["storage/upload:absent"],
        lambda c: c.objects.delete("gs://gcsfs-testing/tmp/test/a"),
    ),
)

UNRECORDED: Mapping[str, str] = {
    "cloud.list_host_heartbeats": "the same call as list_host_keys with a query path, unknown there",
    "cloud.list_disk_changes": "no list of operations is recorded; each has the form of one that was read",
    "cloud.find_end": "asks the TPU API nothing: its nodes stay until somebody deletes them",
    "cloud.set_data_disks": "no change of a node's disks is recorded",
    "disks.list_snapshots": "no list of snapshots is recorded; each has the form of one that was read",
    "disks.resize_disk": "the answer is an operation, as of the other changes",
    "project.firewall": "no list of firewall rules is recorded",
    "disks.set_throughput": "the answer is an operation, as of the other changes",
    "objects.create_bucket": "no creation of a bucket is recorded, only the conflict of one (storage/upload)",
    "objects.upload": "parts are put; the upload that is recorded was posted (storage/upload)",
    "objects.is_public": "no answer to somebody without credentials is recorded",
    "objects.read_pieces": "asks for ranges; the read that is recorded was of the whole (storage/upload)",
    "project.bucket_members": "no policy of a bucket is recorded",
    "project.clock_ahead": "reads the Date of any answer, as objects.server_time does from a recorded one",
}
"""Calls of the client without an answer of Google's, and why."""

FOR_THE_SIMULATOR = {
    "compute/address": "tpuctl lists addresses only",
    **dict.fromkeys(("compute/group", "compute/image", "compute/template"), "of no TPUs"),
    "compute/zone": "tpuctl does not ask",
    "service_usage/disabled": "of an API that tpuctl does not use",
    "resource_manager/permissions": "tpuctl asks version 3",
}
"""Stories that no call of the client meets: they judge the simulator, or say what words look like."""


def seen(value: Any, path: str) -> Any:
    """`endpoints.0.internal_ip` of a value."""
    for step in path.split("."):
        if isinstance(value, Mapping):
            value = value[step]
        elif step.isdecimal():
            value = value[int(step)]
        else:
            value = getattr(value, step)
    return value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_client_reads_what_was_recorded(case: Case) -> None:
    answers: list[Exchange] = [exchange(name) for name in case.answers]
    project = stories()[case.answers[0].partition(":")[0]].project
    if case.port == "inventory.list_assets" and len(answers) == 2:
        answers[0].body["items"][0]["name"] = "gcsfs-testing"
    with replaying(answers) as server:
        client = Client(server.endpoint, project)
        if case.refusal is not None:
            with pytest.raises(case.refusal.kind) as caught:
                case.call(client)
            assert case.refusal.message in caught.value.message
            assert case.refusal.hint in (caught.value.hint or "")
            return
        found = case.call(client)
    if case.sees is None:
        assert found == case.returns
    else:
        assert {path: seen(found, path) for path in case.sees} == case.sees


def test_every_call_of_the_client_has_a_recording_or_is_known_to_have_none() -> None:
    calls = {
        f"{attribute}.{name}"
        for attribute, protocol in PORTS.items()
        for name, _ in inspect.getmembers(protocol, inspect.isfunction)
        if not name.startswith("_")
    }
    covered = {case.port for case in CASES}
    assert covered | set(UNRECORDED) == calls
    assert not covered & set(UNRECORDED)


def test_every_story_is_read_by_the_client_or_says_why_not() -> None:
    read = {name.partition(":")[0] for case in CASES for name in case.answers}
    assert read | set(FOR_THE_SIMULATOR) == set(stories())
    assert not read & set(FOR_THE_SIMULATOR)


def test_every_story_names_its_source_and_how_strong_it_is() -> None:
    for story in stories().values():
        assert story.evidence in EVIDENCE, story.name
        named = story.source.get("document") or (story.source.get("repository") and story.source.get("path"))
        assert named, story.name
        assert story.evidence != "recorded" or story.source.get("licence"), story.name
