"""Rules of `doctor` for the store; for one in a bucket: is it ours, may it be used, does its bucket lose or
hoard things.

Settings of buckets: https://cloud.google.com/storage/docs/json_api/v1/buckets.
"""

from __future__ import annotations

from collections.abc import Iterator

from tpuctl.doctor.facts import DoctorFacts, SharedStore
from tpuctl.doctor.finding import Finding, not_checked, ok, problem, warning
from tpuctl.lib.names import region_of
from tpuctl.lib.shell import quote
from tpuctl.lib.time import render_duration, render_span
from tpuctl.model.facts import BucketPlace, BucketSettings, LifecycleDeletion, StoreFacts

OBJECT_PERMISSIONS = (
    "storage.objects.create",
    "storage.objects.delete",
    "storage.objects.get",
    "storage.objects.list",
)
LOOK_PERMISSION = "storage.buckets.get"
STORE_PERMISSIONS = (*OBJECT_PERMISSIONS, LOOK_PERMISSION)
"""Writing over an object needs to delete, too: https://cloud.google.com/storage/docs/access-control/iam-json."""
SKEW_WARNING_S = 30.0
SLOW_CLASSES = frozenset({"NEARLINE", "COLDLINE", "ARCHIVE"})


def store_findings(facts: DoctorFacts) -> list[Finding]:
    """The store can be opened, read and written."""
    found = facts.store.value
    if found is None:
        return [not_checked(facts.store.error), *_shared_findings(facts)]
    if found.shared:
        judged = [_judge_shared(found, facts.wanted.project), *_shared_findings(facts)]
    else:
        judged = [_judge_store(found, quote(found.where))]
    damaged = facts.records.value.damaged if facts.records.value is not None else ()
    return [*judged, *(problem(error.message, error.hint) for error in damaged)]


ROOM_BYTES = 1 << 20
"""With less than this on its disk the store soon cannot be written: SQLite writes a journal beside it."""


def _judge_store(found: StoreFacts, path: str) -> Finding:
    if not found.exists:
        if found.writable:
            return ok(f"none yet; {found.where} is made by the first command")
        return problem(
            f"{found.where} cannot be made: its directory is not writable", "export TPUCTL_STATE_DIR=…"
        )
    if found.free_bytes is not None and found.free_bytes < ROOM_BYTES:
        what = f"no room on the disk of {found.where}: {found.free_bytes >> 10} KiB are free"
        return problem(what, f"df -h {path}, and remove what is not needed")
    if found.read_only:
        return problem(f"{found.where} is on a file system mounted read-only", "export TPUCTL_STATE_DIR=…")
    if found.locked:
        holder = f" by {found.holder}" if found.holder else ""
        return problem(f"{found.where} is locked{holder}", f"fuser -v {path}, then end that process")
    if found.damage:
        return problem(f"{found.where} is damaged: {found.damage}", f"mv {path} {path}.bad")
    if found.schema is not None and found.schema > found.known_schema:
        what = f"{found.where} has schema {found.schema}, and this tpuctl is old: it knows {found.known_schema}"
        return problem(what, "pip install --upgrade tpuctl")
    if not found.writable:
        return problem(f"{found.where} cannot be written", f"chmod u+w {path}")
    if found.schema is not None and found.schema < found.known_schema:
        what = f"{found.where} has the old schema {found.schema}; the next command brings it to"
        after = "after which an older tpuctl can no longer open it"
        return warning(f"{what} {found.known_schema}, {after}", "tpuctl runs")
    return ok(f"{found.where}, schema {found.schema}")


def _judge_shared(found: StoreFacts, project: str) -> Finding:
    """The store itself, as its mark shows it."""
    where = found.where
    if found.damage:
        fix = f"gcloud storage ls --all-versions {where}/identity, and copy the last good one over it"
        return problem(f"{where} is damaged: {found.damage}", fix)
    if not found.exists:
        return problem(
            f"there is no store at {where}",
            f"tpuctl config init --store {where}; with another place that has one, add --join",
        )
    if found.foreign_project:
        what = f"{where} is the store of project {found.foreign_project}, not of {project}"
        return problem(what, f"tpuctl --project {found.foreign_project} ls, or name another store")
    if found.schema is not None and found.schema > found.known_schema:
        what = f"{where} has schema {found.schema}, and this tpuctl is old: it knows {found.known_schema}"
        return problem(what, "pip install --upgrade tpuctl")
    if found.schema is not None and found.schema < found.known_schema:
        what = f"{where} has the old schema {found.schema}, this tpuctl writes {found.known_schema}"
        return warning(what, "on every machine that shares it: pip install --upgrade tpuctl")
    return ok(f"{where}, schema {found.schema}")


def _shared_findings(facts: DoctorFacts) -> list[Finding]:
    """The bucket around it, where one was looked at."""
    shared = facts.shared
    if shared is None:
        return []
    return [
        *_clock(facts.store.value),
        *_permissions(facts, shared),
        *_place(facts, shared),
        *_settings(shared),
    ]


def _clock(found: StoreFacts | None) -> Iterator[Finding]:
    ahead = found.clock_ahead if found else None
    if ahead is not None and abs(ahead) >= SKEW_WARNING_S:
        what = f"its clock is {render_span(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} this machine's"
        yield warning(f"{what}; leases go by the store's", "sudo timedatectl set-ntp true")


def _permissions(facts: DoctorFacts, shared: SharedStore) -> Iterator[Finding]:
    granted = shared.permissions.value
    if granted is None:
        error = shared.permissions.error
        if error is not None and error.code == "not-found":
            yield problem(f"gs://{shared.bucket} does not exist", _create(facts, shared.bucket))
        else:
            yield not_checked(error)
        return
    missing = [each for each in OBJECT_PERMISSIONS if each not in granted]
    if missing:
        what = f"not granted on gs://{shared.bucket}: {', '.join(missing)}"
        yield problem(what, _grant(facts, shared.bucket, "roles/storage.objectUser"))
    if LOOK_PERMISSION not in granted:
        what = f"not granted on gs://{shared.bucket}: {LOOK_PERMISSION}"
        yield problem(what, _grant(facts, shared.bucket, "roles/storage.legacyBucketReader"))


def _place(facts: DoctorFacts, shared: SharedStore) -> Iterator[Finding]:
    place = shared.place.value
    if place is None:
        return  # what keeps it from being read is a matter of permissions
    zones = sorted({*facts.wanted.zones, *(facts.records.value.zones if facts.records.value else ())})
    away = [zone for zone in zones if not place.is_near(zone)]
    if zones and len(away) == len(zones) and not _same_continent(place, away[0]):
        what = (
            f"gs://{shared.bucket} is in {place.location.lower()}, far from {', '.join(away)}: steps are slow"
        )
        yield warning(what, f"gcloud storage buckets create gs://NEW --location={region_of(away[0])}")


def _same_continent(place: BucketPlace, zone: str) -> bool:
    """A store is small and asked seldom; only an ocean in between is felt."""
    known = {"us": "us", "northamerica": "us", "nam4": "us", "eu": "europe", "eur4": "europe"}
    ours, theirs = place.location.lower().partition("-")[0], zone.partition("-")[0]
    return known.get(ours, ours) == known.get(theirs, theirs)


def _settings(shared: SharedStore) -> Iterator[Finding]:
    found = shared.settings.value
    if found is None:
        if shared.permissions.value is not None and LOOK_PERMISSION in shared.permissions.value:
            yield not_checked(shared.settings.error)
        return
    yield from _what_keeps(shared.bucket, found)
    yield from _what_loses(shared, found)
    if found.storage_class in SLOW_CLASSES:
        what = f"gs://{shared.bucket} is of class {found.storage_class}: every read and rewrite is billed"
        yield warning(what, _update(shared.bucket, "--default-storage-class=STANDARD"))


def _what_keeps(bucket: str, found: BucketSettings) -> Iterator[Finding]:
    """Records and leases are written over and over: what keeps them makes that fail, or keeps it all."""
    if found.retention_s:
        span = render_duration(found.retention_s)
        what = f"gs://{bucket} keeps every object for {span}: records cannot be written over"
        fix = _update(bucket, "--clear-retention-period")
        yield problem(what, f"a bucket without a locked policy ({fix})" if found.retention_locked else fix)
    if found.holds_new_objects:
        what = f"gs://{bucket} puts a hold on every new object: records cannot be written over"
        yield problem(what, _update(bucket, "--no-default-event-based-hold"))
    if found.versioning:
        what = f"gs://{bucket} keeps old versions: of every lease two for each step"
        yield warning(what, _update(bucket, "--no-versioning"))
    if found.soft_delete_s:
        span = render_duration(found.soft_delete_s)
        what = f"gs://{bucket} keeps what is written over for {span}, and bills it"
        yield warning(what, _update(bucket, "--clear-soft-delete"))


def _what_loses(shared: SharedStore, found: BucketSettings) -> Iterator[Finding]:
    for rule in found.deletions:
        if _touches(rule, shared.prefix):
            age = "" if rule.age_days is None else f" after {rule.age_days} days"
            what = f"a lifecycle rule of gs://{shared.bucket} deletes records{age}: slices would be forgotten"
            yield problem(what, _update(shared.bucket, "--clear-lifecycle"))
            return


def _touches(rule: LifecycleDeletion, prefix: str) -> bool:
    """Whether the rule's prefixes reach into the store's."""
    ours = f"{prefix.rstrip('/')}/" if prefix else ""
    return not rule.prefixes or any(ours.startswith(each) or each.startswith(ours) for each in rule.prefixes)


def _update(bucket: str, flag: str) -> str:
    return f"gcloud storage buckets update gs://{bucket} {flag}"


def _create(facts: DoctorFacts, bucket: str) -> str:
    region = region_of(facts.wanted.zones[0]) if facts.wanted.zones else "REGION"
    return (
        f"gcloud storage buckets create gs://{bucket} --location={region} --uniform-bucket-level-access"
        f" --project={facts.wanted.project}"
    )


def _grant(facts: DoctorFacts, bucket: str, role: str) -> str:
    return f"gcloud storage buckets add-iam-policy-binding gs://{bucket} --member={facts.member} --role={role}"
