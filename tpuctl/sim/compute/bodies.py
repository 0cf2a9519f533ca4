"""What calls of Compute Engine ask for, checked against what the simulator does."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tpuctl.sim.compute.catalog import Kind, Scope
from tpuctl.sim.compute.disks import invalid
from tpuctl.sim.compute.fingerprints import fingerprint
from tpuctl.sim.compute.refusals import outdated
from tpuctl.sim.wire.status import Json, unknown_method
from tpuctl.sim.world.paths import ResourcePath, check_labels

_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?\Z")
INPUTS: Mapping[str, frozenset[str]] = {
    "disks": frozenset(
        {
            *("name", "description", "labels", "sizeGb", "type", "zone", "sourceSnapshot", "sourceDisk"),
            *(
                "sourceImage",
                "provisionedIops",
                "provisionedThroughput",
                "physicalBlockSizeBytes",
                "accessMode",
            ),
        }
    ),
    "snapshots": frozenset({"name", "description", "labels", "sourceDisk", "storageLocations", "snapshotType"}),
    "images": frozenset({"name", "description", "labels", "sourceDisk", "storageLocations", "family"}),
    "addresses": frozenset({"name", "description", "labels", "address", "addressType", "networkTier"}),
    "firewalls": frozenset(
        {
            *("name", "description", "network", "direction", "priority", "allowed", "denied", "disabled"),
            *("sourceRanges", "sourceTags", "destinationRanges", "targetTags"),
        }
    ),
    "instanceTemplates": frozenset({"name", "description", "region", "properties"}),
    "reservations": frozenset(
        {
            *("name", "description", "zone", "specificReservation", "specificReservationRequired"),
            "aggregateReservation",
        }
    ),
    "resourcePolicies": frozenset({"name", "description", "region", "workloadPolicy"}),
}
"""What the simulator does of a create; anything else that says something is refused, not dropped."""
_DEFAULTS: tuple[object, ...] = (False, "", 0, "0", [], {}, None, "IPV4", "RAW")
"""What a create may say of anything: it is so anyway."""
_OUTPUTS = frozenset(
    {
        *("kind", "id", "creationTimestamp", "selfLink", "status", "labelFingerprint", "users", "region"),
        *("lastAttachTimestamp", "lastDetachTimestamp", "satisfiesPzi", "satisfiesPzs", "sourceDiskId"),
        *("sourceSnapshotId", "sourceImageId", "sourceType"),
    }
)


def check_body(kind: Kind, body: Json) -> str:
    """The name of what a body asks for. Raises ApiError for what is wrong or not simulated."""
    name = str(body.get("name") or "")
    if not _NAME.match(name):
        text = "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'"
        raise invalid("resource.name", name, text)
    check_labels(body.get("labels") or {})
    known = INPUTS.get(kind.collection, frozenset(body)) | _OUTPUTS
    for field, value in body.items():
        if field not in known and value not in _DEFAULTS:
            raise unknown_method(f"'{field}' of {kind.collection}")
    return name


def changed_labels(data: Json, body: Json) -> Json:
    """New labels for who knows the old ones. Raises conditionNotMet."""
    labels = body.get("labels") or {}
    check_labels(labels)
    if body.get("labelFingerprint") != data["labelFingerprint"]:
        raise outdated("Labels fingerprint either invalid or resource labels have changed")
    return {"labels": labels, "labelFingerprint": fingerprint(labels)}


def target(project: str, kind: Kind, scope: Scope, name: str) -> ResourcePath:
    """What a call is about, for faults and the journal."""
    return ResourcePath(project, scope.location, kind.collection, name)
