"""What a bucket is: its defaults, and what of it may be changed how. Pure.

The shape is that of recorded answers of Google's servers
(GoogleCloudPlatform/k8s-config-connector, mockgcp/mockstorage/testdata/bucket/crud/_http.log).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tpuctl.model.shipped_files import load_sim_storage
from tpuctl.sim.gcs.lifecycle import check_rules
from tpuctl.sim.gcs.wire import Data, GcsError, etag, invalid, not_implemented, seconds_of, timestamp
from tpuctl.sim.world.iam import PROJECT_NUMBER

BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
DAY_S = 86_400
SOFT_DELETE_S = 7 * DAY_S
"""New buckets keep deleted objects so long (https://cloud.google.com/storage/docs/soft-delete)."""
SOFT_DELETE_RANGE_S = (7 * DAY_S, 90 * DAY_S)
_RESERVED_NAME = re.compile(r"goog.*|.*(google|g00gle).*|\d{1,3}(\.\d{1,3}){3}|.*(\.\.|\.-|-\.).*")
"""https://cloud.google.com/storage/docs/buckets#naming"""
MULTI_REGIONS = ("US", "EU", "ASIA")
DUAL_REGIONS = ("ASIA1", "EUR4", "EUR5", "EUR7", "EUR8", "NAM4")
_REGION = re.compile(
    r"(AFRICA|ASIA|AUSTRALIA|EUROPE|ME|NORTHAMERICA|SOUTHAMERICA|US)-(NORTH|SOUTH)?(EAST|WEST|CENTRAL)?\d{1,2}"
)
"""https://cloud.google.com/storage/docs/locations"""
MAX_LABELS = 64
_LABEL_KEY, _LABEL_VALUE = re.compile(r"[a-z][-_a-z0-9]{0,62}"), re.compile(r"[-_a-z0-9]{0,63}")
STORAGE_CLASSES = (
    *("STANDARD", "NEARLINE", "COLDLINE", "ARCHIVE"),
    *("MULTI_REGIONAL", "REGIONAL", "DURABLE_REDUCED_AVAILABILITY"),
)
FIXED = (
    *("id", "kind", "name", "generation", "location", "locationType", "metageneration", "projectNumber"),
    *("project", "etag", "timeCreated", "updated", "selfLink"),
)
"""What a patch does not change."""
UNDONE: Mapping[str, Mapping[str, str]] = load_sim_storage()["undone"]
"""Of buckets, objects and parameters: what would be stored and not done, and what it asks for."""


def merge(old: Mapping[str, Any], patch: Mapping[str, Any]) -> Data:
    """JSON merge patch (RFC 7396), which GCS applies for PATCH."""
    merged = dict(old)
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            below = merged.get(key)
            merged[key] = merge(below if isinstance(below, dict) else {}, value)
        else:
            merged[key] = value
    return merged


def refuse_undone(data: Mapping[str, Any], noun: str) -> None:
    """Nothing is accepted and then not done."""
    for path, what in UNDONE[noun].items():
        value: Any = data
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value:
            raise not_implemented(f"{what} ({path})")


def new_bucket(asked: Mapping[str, Any], project: str | None, now: float) -> Data:
    """The bucket that `asked` describes. Raises GcsError."""
    name = asked.get("name")
    if not isinstance(name, str) or not BUCKET_NAME.fullmatch(name):
        raise invalid(f"Invalid bucket name: '{name or ''}'")
    if _RESERVED_NAME.fullmatch(name):
        raise invalid(f"Invalid bucket name: '{name}'")
    location = str(asked.get("location") or "US").upper()  # shown in capitals whatever was asked
    made = {
        "kind": "storage#bucket",
        "storageClass": "STANDARD",
        "rpo": "DEFAULT",
        **{key: value for key, value in asked.items() if key not in FIXED and value is not None},
        "name": name,
        "id": name,
        "project": project,
        "projectNumber": PROJECT_NUMBER,
        "location": location,
        "locationType": _location_type(location),
        "generation": str(int(now * 1_000_000)),
    }
    made.setdefault("softDeletePolicy", {"retentionDurationSeconds": str(SOFT_DELETE_S)})
    return _settle(made, {}, 1, now) | {"timeCreated": timestamp(now)}


def _location_type(location: str) -> str:
    if location in MULTI_REGIONS:
        return "multi-region"
    if location in DUAL_REGIONS:
        return "dual-region"
    if not _REGION.fullmatch(location):
        raise invalid("The specified location constraint is not valid.")
    return "region"


def _check_labels(labels: Mapping[str, str]) -> None:
    """https://cloud.google.com/storage/docs/tags-and-labels#bucket-labels"""
    if len(labels) > MAX_LABELS:
        raise invalid(f"A bucket can have {MAX_LABELS} labels at most, not {len(labels)}.")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(str(value)):
            raise invalid(f"Invalid label: '{key}': '{value}'")


def changed_bucket(old: Data, patch: Mapping[str, Any], now: float) -> Data:
    """`old` with `patch` merged into it. Raises GcsError."""
    wanted = {key: value for key, value in patch.items() if key not in FIXED}
    if wanted.get("hierarchicalNamespace", old.get("hierarchicalNamespace")) != old.get(
        "hierarchicalNamespace"
    ):
        raise invalid("Hierarchical namespace can only be configured when a bucket is created.")
    data = merge(old, wanted)
    _check_lock(old, data)
    return _settle(data, old, int(old["metageneration"]) + 1, now)


def locked_bucket(old: Data, now: float) -> Data:
    """`old` with its retention policy locked. Raises GcsError."""
    if not retention_s(old):
        raise invalid("The bucket has no retention policy to lock.")
    locked = {**old, "retentionPolicy": {**old["retentionPolicy"], "isLocked": True}}
    return _settle(locked, locked, int(old["metageneration"]) + 1, now)


def _check_lock(old: Data, data: Data) -> None:
    """A locked retention policy only grows (https://cloud.google.com/storage/docs/bucket-lock; the words are
    those that gsutil's tests and users of bucket locks quote)."""
    if is_locked(data) and not is_locked(old):
        raise not_implemented("locking a retention policy otherwise than by buckets.lockRetentionPolicy")
    if not is_locked(old):
        return
    if not data.get("retentionPolicy"):
        raise GcsError(
            403,
            f"Bucket '{old['name']}' has a locked Retention Policy which cannot be removed.",
            reason="retentionPolicyNotMet",
        )
    if retention_s(data) < retention_s(old) or not is_locked(data):
        raise GcsError(
            403,
            f"Cannot reduce retention duration of a locked Retention Policy for bucket '{old['name']}'.",
        )


def _settle(data: Data, old: Data, metageneration: int, now: float) -> Data:
    refuse_undone(data, "bucket")
    check_storage_class(data.get("storageClass"))
    check_rules(data, STORAGE_CLASSES)
    _check_labels(data.get("labels") or {})
    stamp = timestamp(now)
    access = data.setdefault("iamConfiguration", {})
    access.setdefault("publicAccessPrevention", "inherited")
    uniform = access.setdefault("uniformBucketLevelAccess", {"enabled": False})
    access["bucketPolicyOnly"] = dict(uniform)  # its former name
    if (data.get("hierarchicalNamespace") or {}).get("enabled"):
        if not uniform.get("enabled"):
            raise invalid("Hierarchical namespace buckets must use uniform bucket-level access.")
        if (data.get("versioning") or {}).get("enabled"):
            raise invalid("Object versioning is not supported in hierarchical namespace buckets.")
    soft = data.get("softDeletePolicy") or {}
    seconds = int(soft.get("retentionDurationSeconds", 0))
    low, high = SOFT_DELETE_RANGE_S
    if seconds and not low <= seconds <= high:
        raise invalid(f"softDeletePolicy.retentionDurationSeconds must be 0 or between {low} and {high}.")
    if int((data.get("retentionPolicy") or {}).get("retentionPeriod", 1)) <= 0:
        raise invalid("The retention period must be greater than zero.")
    if is_locked(data) and not old:
        raise not_implemented("locking a retention policy otherwise than by buckets.lockRetentionPolicy")
    for key in ("softDeletePolicy", "retentionPolicy"):
        was = (old.get(key) or {}).get("effectiveTime")
        same = {**(old.get(key) or {}), "effectiveTime": None} == {
            **(data.get(key) or {}),
            "effectiveTime": None,
        }
        if data.get(key):
            data[key] = {**data[key], "effectiveTime": was if was and same else stamp}
    if soft:
        data["softDeletePolicy"]["retentionDurationSeconds"] = str(seconds)
    return {**data, "metageneration": str(metageneration), "etag": etag(metageneration), "updated": stamp}


def check_storage_class(name: Any) -> None:
    if name not in (None, *STORAGE_CLASSES):
        raise invalid(f"Invalid storage class: {name}")


def soft_delete_s(bucket: Mapping[str, Any]) -> int:
    """How long the bucket keeps what is deleted; 0: not at all."""
    return int((bucket.get("softDeletePolicy") or {}).get("retentionDurationSeconds", 0))


def is_versioned(bucket: Mapping[str, Any]) -> bool:
    return bool((bucket.get("versioning") or {}).get("enabled"))


def retention_s(bucket: Mapping[str, Any]) -> int:
    return int((bucket.get("retentionPolicy") or {}).get("retentionPeriod", 0))


def retention(bucket: Mapping[str, Any], object_data: Mapping[str, Any]) -> Data:
    """`retentionExpirationTime` of an object as its bucket's policy is now; nothing without one, and under an
    event-based hold, at whose end the time begins (https://cloud.google.com/storage/docs/object-holds)."""
    seconds = retention_s(bucket)
    if not seconds or object_data.get("eventBasedHold"):
        return {}
    return {"retentionExpirationTime": timestamp(seconds_of(object_data["timeCreated"]) + seconds)}


def is_locked(bucket: Mapping[str, Any]) -> bool:
    return bool((bucket.get("retentionPolicy") or {}).get("isLocked"))


def taken() -> GcsError:
    return GcsError(409, "Your previous request to create the named bucket succeeded and you already own it.")
