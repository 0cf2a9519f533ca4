"""What each thing that tpuctl does needs of Google's roles, and whose.

`doctor` asks for the permissions, the pages show the roles, and refusals name them
(manifests/tables/errors.yaml).
Which role has which permission: https://cloud.google.com/iam/docs/roles-permissions.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from msgspec import Struct


class Who(StrEnum):
    """Whose role it is."""

    YOU = "you"
    WATCHDOG = "watchdog"
    HOSTS = "hosts"


class FleetUse(StrEnum):
    """What a fleet may do or not; the rest every fleet does."""

    DISKS = "disks"
    SECRETS = "secrets"


class RoleNeed(Struct, frozen=True):
    """A role, on what, for what, and whose. `permissions` are those of it that `doctor` asks for on the
    project. `use`: only a fleet that does that needs it. `without` says what goes wrong; `stops`: nothing works
    then."""

    role: str
    on: str
    purpose: str
    who: frozenset[Who]
    permissions: tuple[str, ...] = ()
    use: FleetUse | None = None
    without: str = ""
    stops: bool = False


ACT_AS = "iam.serviceAccounts.actAs"
"""Whoever makes a machine acts as its service account (cloud.google.com/iam/docs/service-account-overview)."""
PROJECT = "the project"
BOTH = frozenset({Who.YOU, Who.WATCHDOG})

ROLES = (
    RoleNeed(
        "roles/tpu.admin",
        PROJECT,
        "create and delete TPUs",
        BOTH,
        # Queued resources have no permissions of their own: cloud.google.com/iam/docs/roles-permissions/tpu.
        (
            *("tpu.nodes.create", "tpu.nodes.delete", "tpu.nodes.get", "tpu.nodes.list"),
            "tpu.operations.get",
        ),
        stops=True,
    ),
    RoleNeed(
        "roles/viewer",
        PROJECT,
        "`tpuctl doctor` and `tpuctl quota`",
        frozenset({Who.YOU}),
        (
            *("compute.projects.get", "compute.regions.get", "serviceusage.services.list"),
            "cloudquotas.quotas.get",
        ),
        without="quotas and settings stay partly unread",
    ),
    RoleNeed(
        "roles/serviceusage.serviceUsageConsumer",
        PROJECT,
        "calls that count against the project",
        frozenset({Who.YOU}),
    ),
    RoleNeed("roles/compute.viewer", PROJECT, "quotas, networks", frozenset({Who.WATCHDOG})),
    RoleNeed(
        "roles/iam.serviceAccountUser",
        "the service account of the hosts: the project's default one, or that of `--service-account`",
        "create hosts that run as this account",
        BOTH,
        (ACT_AS,),
        without="no node is made unless its service account grants it",
    ),
    RoleNeed(
        "roles/compute.storageAdmin",
        PROJECT,
        "`tpuctl disk`: disks and snapshots; passes that bring a disk to another zone",
        BOTH,
        (
            *("compute.disks.create", "compute.disks.createSnapshot", "compute.disks.delete"),
            *("compute.disks.get", "compute.disks.list", "compute.disks.resize", "compute.disks.setLabels"),
            *("compute.disks.use", "compute.disks.useReadOnly"),
            *("compute.snapshots.create", "compute.snapshots.delete", "compute.snapshots.get"),
            *("compute.snapshots.list", "compute.snapshots.setLabels", "compute.snapshots.useReadOnly"),
        ),
        use=FleetUse.DISKS,
        without="disks are not made, copied or brought back",
    ),
    RoleNeed(
        "roles/secretmanager.secretAccessor",
        "each secret that `--secret NAME=sm://…` names",
        "read it at each attempt",
        BOTH,
        ("secretmanager.versions.access",),
        use=FleetUse.SECRETS,
        without="no attempt starts unless its secrets grant it",
    ),
    RoleNeed("roles/storage.objectUser", "the bucket of a shared store", "read and write the store", BOTH),
    RoleNeed("roles/storage.legacyBucketReader", "the bucket of a shared store", "look at its settings", BOTH),
    RoleNeed("roles/storage.objectViewer", "the buckets of checkpoints", "see how far a run is", BOTH),
    RoleNeed(
        "roles/storage.objectUser",
        "buckets of checkpoints, mounts and environments",
        "write checkpoints and mounts that are not read-only",
        frozenset({Who.HOSTS}),
    ),
)
"""Every role, in the order in which a person grants them."""


def needs_of(uses: Collection[FleetUse]) -> tuple[RoleNeed, ...]:
    """Those of a fleet that does `uses`."""
    return tuple(each for each in ROLES if each.use is None or each.use in uses)


def asked_permissions(uses: Collection[FleetUse] = tuple(FleetUse)) -> tuple[str, ...]:
    """What `doctor` asks for on the project."""
    return tuple(permission for each in needs_of(uses) for permission in each.permissions)
