"""What calls of Compute Engine ask for, checked against what the simulator does."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from tpuctl.sim.compute.catalog import Kind, Scope
from tpuctl.sim.compute.refusals import invalid, outdated
from tpuctl.sim.wire.status import Json, unknown_method
from tpuctl.sim.world.paths import ResourcePath, check_labels

_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?\Z")
_DEFAULTS: tuple[object, ...] = (False, "", 0, "0", [], {}, None, "IPV4", "RAW")
"""What a create may say of anything: it is so anyway."""
_OUTPUTS = frozenset(
    {
        *("kind", "id", "creationTimestamp", "selfLink", "status", "labelFingerprint", "users", "region"),
        *("lastAttachTimestamp", "lastDetachTimestamp", "satisfiesPzi", "satisfiesPzs", "sourceDiskId"),
        *("sourceSnapshotId", "sourceImageId", "sourceType"),
    }
)
FINGERPRINT = "42WmSpB8rSM="
"""What the API shows for no labels."""


def fingerprint(labels: Mapping[str, str]) -> str:
    """Changes with the labels; who changes them must name it."""
    digest = hashlib.sha256(json.dumps(labels, sort_keys=True).encode()).digest()
    return base64.urlsafe_b64encode(digest[:8]).decode() if labels else FINGERPRINT


def check_body(kind: Kind, body: Json) -> str:
    """The name of what a body asks for. Raises ApiError for what is wrong or not simulated."""
    name = str(body.get("name") or "")
    if not _NAME.match(name):
        text = "Must be a match of regex '(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)'"
        raise invalid("resource.name", name, text)
    check_labels(body.get("labels") or {})
    refuse_others(body, kind.inputs | _OUTPUTS, kind.collection)
    return name


def refuse_others(asked: Json, known: AbstractSet[str], of: str) -> None:
    """Anything else than `known` that says something is refused, not dropped."""
    for field, value in asked.items():
        if field not in known and value not in _DEFAULTS:
            raise unknown_method(f"'{field}' of {of}")


def shown_labels(labels: Mapping[str, str]) -> Json:
    return {**({"labels": dict(labels)} if labels else {}), "labelFingerprint": fingerprint(labels)}


def set_labels(data: Json, body: Json) -> Json:
    """`data` with new labels, for who knows the old ones. Raises conditionNotMet."""
    labels = body.get("labels") or {}
    check_labels(labels)
    if body.get("labelFingerprint") != data["labelFingerprint"]:
        raise outdated("Labels fingerprint either invalid or resource labels have changed")
    return {**{key: value for key, value in data.items() if key != "labels"}, **shown_labels(labels)}


def target(project: str, kind: Kind, scope: Scope, name: str) -> ResourcePath:
    """What a call is about, for faults and the journal."""
    return ResourcePath(project, scope.location, kind.collection, name)


def last_part(url: object) -> str:
    """The name at the end of a resource's address."""
    return str(url).rsplit("/", 1)[-1]
