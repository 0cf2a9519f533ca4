"""What a version of an object is, what may be written into one, and what protects it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpuctl.sim.gcs import buckets as gcs_buckets
from tpuctl.sim.gcs.content import Content
from tpuctl.sim.gcs.wire import Data, GcsError, ObjectName, etag, invalid, seconds_of, timestamp

LIVE, NONCURRENT, DELETED = "live", "noncurrent", "deleted"
MAX_METADATA = 8192
WRITABLE = ("contentType", "contentEncoding", "contentLanguage", "contentDisposition", "cacheControl",
            "metadata", "customTime", "storageClass", "temporaryHold", "eventBasedHold")  # fmt: skip
HOLDS: Mapping[str, str] = {"temporaryHold": "Temporary", "eventBasedHold": "Event-Based"}


@dataclass(frozen=True)
class Version:
    """One row: what the API shows of a version, and the file with its content."""

    state: str
    data: Data
    content: str

    @property
    def where(self) -> ObjectName:
        return ObjectName(self.data["bucket"], self.data["name"])

    @property
    def stored(self) -> Content:
        data = self.data
        components = int(data.get("componentCount", 0))
        return Content(self.content, int(data["size"]), data.get("md5Hash", ""), data["crc32c"], components)


def new_version(
    where: ObjectName, fields: Mapping[str, Any], bucket: Data, content: Content, generation: int, now: float
) -> Version:
    """A live version with what the service fills in."""
    stamp = timestamp(now)
    chosen = {key: fields[key] for key in WRITABLE if fields.get(key) is not None}
    held = {"eventBasedHold": True} if bucket.get("defaultEventBasedHold") else {}
    data = {
        "kind": "storage#object",
        "storageClass": bucket.get("storageClass", "STANDARD"),
        **held,
        **chosen,
        "id": f"{where.bucket}/{where.name}/{generation}",
        "name": where.name,
        "bucket": where.bucket,
        "generation": str(generation),
        "metageneration": "1",
        "etag": etag(generation, 1),
        "timeCreated": stamp,
        "updated": stamp,
        "timeStorageClassUpdated": stamp,
        "timeFinalized": stamp,
        "size": str(content.size),
        "crc32c": content.crc32c,
        **({"md5Hash": content.md5} if content.md5 else {}),
        **({"componentCount": content.components} if content.components else {}),
    }
    return Version(LIVE, data, content.file)


def check_protection(bucket: Data, version: Version | None, now: float, *, archived: bool) -> None:
    """403 for a version under a hold, or (unless it is only `archived`) under the retention policy."""
    if version is None:
        return
    shown = f"Object '{version.where.bucket}/{version.where.name}'"
    for hold, kind in HOLDS.items():
        if version.data.get(hold):
            raise GcsError(
                403,
                f"{shown} is under active {kind} hold and cannot be deleted, overwritten or archived "
                "until hold is removed.",
                reason="objectUnderActiveHold",
            )
    until = seconds_of(version.data["timeCreated"]) + gcs_buckets.retention_s(bucket)
    if until > now and gcs_buckets.retention_s(bucket) and not archived:
        raise GcsError(
            403,
            f"{shown} is subject to bucket's retention policy or object retention and cannot be deleted or "
            f"overwritten until {timestamp(until)}",
            reason="retentionPolicyNotMet",
        )


def check_metadata(fields: Mapping[str, Any]) -> None:
    """https://cloud.google.com/storage/quotas#objects"""
    custom = fields.get("metadata") or {}
    size = sum(len(key.encode()) + len(str(value or "").encode()) for key, value in custom.items())
    if size > MAX_METADATA:
        raise invalid(f"The metadata of an object can have {MAX_METADATA} bytes at most, not {size}.")


def check_digests(fields: Mapping[str, Any], content: Content) -> None:
    """400 for a digest that is not the content's. Content without md5 has none to compare."""
    for key, name, actual in (
        ("md5Hash", "MD5 hash", content.md5),
        ("crc32c", "CRC32C", content.crc32c),
    ):
        if actual and fields.get(key) not in (None, actual):
            raise GcsError(400, f'Provided {name} "{fields[key]}" doesn\'t match calculated {name} "{actual}".')
