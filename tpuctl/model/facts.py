"""Facts about this machine, the store and the project: plain data that adapters return and `doctor` judges."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from tpuctl.errors import TpuctlError
from tpuctl.lib.names import region_of


class CredentialFacts(Struct, frozen=True):
    """What the API is asked with.

    `kind` is the `type` of the credentials file, `token-file`, or `machine` for a Google VM's own account;
    `expires_at` is in epoch seconds, None where nobody says; `renews`: a new token comes by itself.
    """

    kind: str
    where: str
    account: str = ""
    expires_at: float | None = None
    renews: bool = True
    quota_project: str | None = None
    """The project to which a person's login has its calls counted, empty for none; None for other kinds."""


class KeyFacts(Struct, frozen=True):
    """This machine's SSH key. `mode` is None when there is no file; `error` says why it is no key."""

    path: str
    mode: int | None = None
    error: str = ""


class ToolFacts(Struct, frozen=True):
    """A program or library; `version` is None when it is missing. `purpose` says what needs it."""

    name: str
    version: str | None
    purpose: str
    needed: bool = False
    fix: str = ""


class StoreFacts(Struct, frozen=True):
    """The store as a look from outside shows it, changing nothing. `holder` is who keeps it locked."""

    where: str
    exists: bool = True
    schema: int | None = None
    known_schema: int = 0
    locked: bool = False
    holder: str = ""
    damage: str = ""
    writable: bool = True
    read_only: bool = False
    """Its file system is mounted so."""
    free_bytes: int | None = None
    """On its disk; None where that is not known."""
    foreign_project: str = ""
    """The project that a shared store belongs to, if that is another one."""
    clock_ahead: float | None = None
    """Seconds by which the clock of a shared store's server is ahead of this machine's, to about a second."""

    @property
    def shared(self) -> bool:
        return self.where.startswith("gs://")

    @property
    def usable(self) -> bool:
        """Whether it can be opened now without being brought to another schema."""
        other = self.schema is not None and self.schema != self.known_schema
        absent = self.shared and not self.exists
        return not (self.locked or self.damage or other or self.foreign_project or absent or not self.writable)


class WatchFacts(Struct, frozen=True):
    """What this machine has of a watchdog. None where the machine does not tell."""

    installed: bool
    """`watch install` was here: its script is."""
    in_crontab: bool | None = None
    timer: bool = False
    cron_runs: bool | None = None
    broken_hooks: tuple[TpuctlError, ...] = ()


class BucketPlace(Struct, frozen=True):
    """Where a bucket is: `US-CENTRAL2`, `EU`, … and `region`, `dual-region` or `multi-region`."""

    location: str
    kind: str
    regions: tuple[str, ...] = ()
    """The regions of a dual-region of one's own choice, in lower case."""

    def is_near(self, zone: str) -> bool:
        """Whether traffic between the bucket and a zone stays in one region, or in the bucket's multi-region.

        Places: https://cloud.google.com/storage/docs/locations.
        """
        region, location = region_of(zone), self.location.lower()
        if self.regions:
            return region in self.regions
        multi = {"us": "us-", "eu": "europe-", "asia": "asia-"}
        if location in multi:
            return region.startswith(multi[location])
        known = {"nam4": ("us-central1", "us-east1"), "eur4": ("europe-north1", "europe-west4")}
        return region in known.get(location, (location,))


class LifecycleDeletion(Struct, frozen=True):
    """A lifecycle rule of a bucket that removes live objects. No `prefixes`: everywhere in the bucket."""

    prefixes: tuple[str, ...] = ()
    age_days: int | None = None


class BucketSpec(Struct, frozen=True):
    """A bucket to be made in a region: access by IAM alone, nothing public, no soft delete."""

    name: str
    region: str
    labels: Mapping[str, str]
    hierarchical: bool = False


class BucketSettings(Struct, frozen=True):
    """What a bucket does with its objects. Spans in seconds; 0 means not at all."""

    storage_class: str = "STANDARD"
    versioning: bool = False
    soft_delete_s: float = 0.0
    retention_s: float = 0.0
    retention_locked: bool = False
    holds_new_objects: bool = False
    deletions: tuple[LifecycleDeletion, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
