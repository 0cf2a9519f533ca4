"""The facts that `doctor` judges: plain data about this machine, the store and the project."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from tpuctl.disks.unused import UnusedDisks
from tpuctl.errors import DamagedRecordError
from tpuctl.inventory.reap import TpuSurvey
from tpuctl.lib.parallel import Reading
from tpuctl.model.accelerators import Catalog
from tpuctl.model.cloud import Api, Tier
from tpuctl.model.facts import (
    BucketPlace,
    BucketSettings,
    CredentialFacts,
    KeyFacts,
    StoreFacts,
    ToolFacts,
    WatchFacts,
)
from tpuctl.model.firewall import Firewall
from tpuctl.model.quota import ComputeQuota, ProjectInfo, TpuQuota
from tpuctl.model.roles import FleetUse
from tpuctl.money.grants import Grant
from tpuctl.money.quotas import Holding
from tpuctl.watch.heartbeat import Health


class SharedStore(Struct, frozen=True):
    """The identity in the bucket of a shared store, and the permissions on it."""

    bucket: str
    prefix: str
    place: Reading[BucketPlace]
    settings: Reading[BucketSettings]
    permissions: Reading[frozenset[str]]


class StoreRecords(Struct, frozen=True):
    """What the records of the store mean for `doctor`. `wanted` counts slices and runs that need a watchdog."""

    grants: tuple[Grant, ...] = ()
    zones: tuple[str, ...] = ()
    """Of slices that are wanted."""
    apis: Mapping[tuple[str, str], frozenset[Api]] = field(default_factory=dict)
    """Zone and generation → the APIs that these slices are made by."""
    used_apis: frozenset[Api] = frozenset()
    """By which slices are or were made, wanted or not."""
    wanted: int = 0
    health: Health | None = None
    paused: str = ""
    damaged: tuple[DamagedRecordError, ...] = ()
    uses: frozenset[FleetUse] = frozenset()


class PlannedUse(Struct, frozen=True):
    """What the settings say will be asked for."""

    project: str
    zones: tuple[str, ...]
    generation: str | None
    """Of the accelerator that the settings name."""
    tier: Tier | None
    external_ips: bool
    simulated: bool = False
    network: str = "default"
    buckets: Mapping[str, str] = field(default_factory=dict)
    """Bucket → the setting that names it."""
    store: str | None = None
    """The `gs://` place of a shared store."""
    apis: tuple[Api, ...] = (Api.TPU,)
    """Those that make that accelerator, the usual one first."""


class DoctorFacts(Struct, frozen=True):
    """Everything that `doctor` read; what could not be read says why."""

    wanted: PlannedUse
    catalog: Catalog
    now: float
    credentials: Reading[CredentialFacts]
    services: Reading[frozenset[str]]
    permissions: Reading[frozenset[str]]
    project: Reading[ProjectInfo]
    network: Reading[str]
    firewall: Reading[Firewall]
    """Of that network."""
    tpu_quotas: Reading[tuple[TpuQuota, ...]]
    """Of the TPU API, as `holdings`."""
    holdings: Reading[tuple[Holding, ...]]
    regions: Mapping[str, Reading[tuple[ComputeQuota, ...]]]
    clock_ahead: Reading[float]
    survey: Reading[TpuSurvey]
    """Of all TPUs; empty where there is no store yet."""
    unused_disks: Reading[UnusedDisks]
    keys: Reading[KeyFacts]
    tools: Reading[tuple[ToolFacts, ...]]
    buckets: Mapping[str, Reading[BucketPlace]]
    store: Reading[StoreFacts]
    records: Reading[StoreRecords]
    watch: Reading[WatchFacts]
    shared: SharedStore | None = None
    compute_quotas: Reading[tuple[TpuQuota, ...]] = Reading(())
    """Of TPUs of Compute Engine, as `compute_holdings`; none where nothing that is named may be made by it."""
    compute_holdings: Reading[tuple[Holding, ...]] = Reading(())

    @property
    def member(self) -> str:
        """The caller, as IAM names him."""
        found = self.credentials.value
        account = found.account if found else ""
        kind = "serviceAccount" if account.endswith(".gserviceaccount.com") else "user"
        return f"{kind}:{account}" if account else "user:YOU@EXAMPLE.COM"

    def asked_in_every_case(self) -> Iterator[Reading[Any]]:
        """What is asked of the APIs whatever there is. What may be answered without a call, such as `survey`
        where there is no store, is left out: it would hide that nothing answers."""
        yield from (self.services, self.permissions, self.project, self.tpu_quotas, self.holdings)
        yield self.network
        yield from self.regions.values()
        yield from self.buckets.values()
