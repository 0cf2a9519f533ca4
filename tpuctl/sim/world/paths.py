"""Resource names of the TPU API, taken apart and checked."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tpuctl.sim.wire.status import invalid_argument

ACCOUNT = "sim@tpuctl.invalid"
_DISK = re.compile(r"(?:https?://[^/]+/compute/v1/)?projects/([^/]+)/zones/([^/]+)/disks/([^/]+)")
_ID = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
_LABEL_KEY = re.compile(r"[a-z][-_a-z0-9]{0,62}\Z")
_LABEL_VALUE = re.compile(r"[-_a-z0-9]{0,63}\Z")
MAX_ID = 63
MAX_LABELS = 64
ANY_ZONE = "-"


@dataclass(frozen=True)
class ResourcePath:
    """`projects/P/locations/Z[/COLLECTION/ID]`; `collection` and `id` are empty for a location."""

    project: str
    zone: str
    collection: str = ""
    id: str = ""

    @property
    def location(self) -> str:
        return f"projects/{self.project}/locations/{self.zone}"

    @property
    def name(self) -> str:
        return f"{self.location}/{self.collection}/{self.id}" if self.collection else self.location

    def child(self, collection: str, id: str) -> ResourcePath:
        return ResourcePath(self.project, self.zone, collection, id)


def parse_path(name: str) -> ResourcePath:
    """Takes a location's or a resource's name apart; raises INVALID_ARGUMENT."""
    parts = name.split("/")
    if len(parts) not in (4, 6) or parts[0] != "projects" or parts[2] != "locations" or not all(parts[1::2]):
        raise invalid_argument(f'Invalid resource name "{name}".')
    return ResourcePath(parts[1], parts[3], *parts[4:])


def attached_disk(source: str) -> tuple[str, str] | None:
    """Zone and name of a disk's full path, as `dataDisks` of nodes have it."""
    match = _DISK.fullmatch(source)
    return (match.group(2), match.group(3)) if match else None


def check_id(kind: str, value: str) -> None:
    """Ids become host names: lower case letters, digits and hyphens, a letter first, at most 63."""
    if len(value) > MAX_ID or not _ID.match(value):
        raise invalid_argument(
            f'Invalid {kind} id "{value}": must match "[a-z]([-a-z0-9]*[a-z0-9])?" and be at most 63 '
            "characters long."
        )


def check_labels(labels: dict[str, str]) -> None:
    """Google Cloud's label rules: https://cloud.google.com/resource-manager/docs/labels-overview."""
    if len(labels) > MAX_LABELS:
        raise invalid_argument(f"Too many labels: {len(labels)} > {MAX_LABELS}.")
    for key, value in labels.items():
        if not _LABEL_KEY.match(key):
            raise invalid_argument(f'Invalid label key "{key}".')
        if not _LABEL_VALUE.match(value):
            raise invalid_argument(f'Invalid value "{value}" for label "{key}".')


TOKEN_PREFIX = "/_t/"  # noqa: S105 - a path, not a secret


def storage_endpoint(server: str, token: str) -> str:
    """The value of STORAGE_EMULATOR_HOST for the server at `http://HOST:PORT`: the token is in the path."""
    return f"{server}{TOKEN_PREFIX}{token}"


STORAGE_BY_REST = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
"""gcsfs asks by gRPC what kind of bucket it is, always at Google, and waits a minute for the answer
(fsspec/gcsfs, gcsfs/extended_gcsfs.py)."""


def storage_environment(server: str, token: str) -> dict[str, str]:
    """Variables by which clients of Cloud Storage find the server at `http://HOST:PORT`."""
    endpoint = storage_endpoint(server, token)
    return {
        "STORAGE_EMULATOR_HOST": endpoint,
        # tensorstore, and with it orbax's array store, knows no other name
        # (google/tensorstore, tensorstore/kvstore/gcs_http/gcs_resource.h).
        "TENSORSTORE_GCS_HTTP_URL": endpoint,
        # obstore and whatever else is built on object_store (its crate, src/gcp/builder.rs).
        "GOOGLE_BASE_URL": endpoint,
        "GOOGLE_BEARER_TOKEN": token,
        **STORAGE_BY_REST,
    }
