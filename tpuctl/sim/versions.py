"""Which fields v2 and v2alpha1 take and show: the same resources, seen through two versions of the API.

Names are those of the discovery documents, revision 20261001. A field that a version does not know refuses the
whole request, as Google's front end does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tpuctl.sim.kernel import Json
from tpuctl.sim.status import ApiError, Code

ALPHA = "v2alpha1"

_NODE = frozenset(
    {
        *(
            "name",
            "description",
            "acceleratorType",
            "acceleratorConfig",
            "state",
            "health",
            "healthDescription",
        ),
        *("runtimeVersion", "networkConfig", "networkConfigs", "cidrBlock", "serviceAccount", "createTime"),
        *(
            "schedulingConfig",
            "networkEndpoints",
            "labels",
            "metadata",
            "tags",
            "id",
            "dataDisks",
            "apiVersion",
        ),
        *("symptoms", "shieldedInstanceConfig", "queuedResource", "multisliceNode", "bootDiskConfig"),
        "upcomingMaintenance",
    }
)
_QUEUED = frozenset(
    {"name", "createTime", "tpu", "spot", "guaranteed", "queueingPolicy", "reservationName", "state"}
)
_SPEC = frozenset({"parent", "nodeId", "node"})
_KNOWN: Mapping[str, Mapping[str, frozenset[str]]] = {
    "v2": {
        "node": _NODE | {"protectionTier"},
        "node.schedulingConfig": frozenset({"preemptible", "reserved", "spot"}),
        "node.bootDiskConfig": frozenset({"customerEncryptionKey"}),
        "queuedResource": _QUEUED,
        "queuedResource.guaranteed": frozenset({"minDuration"}),
        "nodeSpec": _SPEC | {"multisliceParams"},
    },
    ALPHA: {
        "node": _NODE | {"autocheckpointEnabled"},
        "node.schedulingConfig": frozenset(
            {
                *("preemptible", "reserved", "spot"),
                *("provisioningModel", "reservationName", "terminationTimestamp"),
            }
        ),
        "node.bootDiskConfig": frozenset(
            {
                *("customerEncryptionKey", "diskSizeGb", "sourceImage", "provisionedIops"),
                *("provisionedThroughput", "storagePool", "enableConfidentialCompute"),
            }
        ),
        "queuedResource": _QUEUED | {"bestEffort", "provisioningModel", "runDuration", "trafficConfig"},
        "queuedResource.guaranteed": frozenset({"minDuration", "reserved"}),
        "nodeSpec": _SPEC | {"multiNodeParams"},
    },
}
"""Version → message → its fields."""


def _messages(kind: str, body: Any) -> Iterator[tuple[str, str, Json]]:
    """Every message in a node or queued resource that the table knows: its kind, where it is, its fields."""
    if not isinstance(body, dict):
        return
    yield kind, kind, body
    for inner in ("schedulingConfig", "bootDiskConfig", "guaranteed"):
        if isinstance(body.get(inner), dict) and f"{kind}.{inner}" in _KNOWN["v2"]:
            yield f"{kind}.{inner}", f"{kind}.{inner}", body[inner]
    if kind == "queuedResource":
        for index, spec in enumerate((body.get("tpu") or {}).get("nodeSpec") or []):
            yield "nodeSpec", f"queuedResource.tpu.nodeSpec[{index}]", spec
            for name, where, message in _messages("node", spec.get("node")):
                yield name, f"queuedResource.tpu.nodeSpec[{index}].{where}", message


ACCELERATOR_NUMBERS = {2: "V2", 4: "V3", 7: "V4", 9: "V5LITE_POD", 10: "V5P", 11: "V6E"}
"""`AcceleratorConfig.Type` of google-cloud-tpu 1.28, whose REST client sends numbers for enums."""


def spell_enums(request: Json) -> None:
    """Numbers of enums in a request become names, as proto3's JSON allows either. Changes `request`."""
    for kind in ("node", "queuedResource"):
        for message, _, fields in _messages(kind, request.get(kind)):
            config = fields.get("acceleratorConfig") if message == "node" else None
            if isinstance(config, dict) and config.get("type") in ACCELERATOR_NUMBERS:
                config["type"] = ACCELERATOR_NUMBERS[config["type"]]


def check_fields(version: str, request: Json) -> None:
    """Refuses a request with a field that `version` does not have. Raises ApiError, INVALID_ARGUMENT."""
    for kind in ("node", "queuedResource"):
        for message, where, fields in _messages(kind, request.get(kind)):
            for name in fields:
                if name not in _KNOWN[version][message]:
                    text = f"Unknown name \"{name}\" at '{where}': Cannot find field."
                    raise ApiError(Code.INVALID_ARGUMENT, f"Invalid JSON payload received. {text}")


def show(version: str, answer: Json) -> Json:
    """`answer` without what `version` does not know. Changes `answer`, which belongs to the caller."""
    for kind, body in _shown(answer):
        for message, _, fields in _messages(kind, body):
            for name in set(fields) - _KNOWN[version][message] - {"@type"}:
                del fields[name]
    return answer


def _shown(answer: Json) -> Iterator[tuple[str, Json]]:
    """The nodes and queued resources in an answer: itself, those of a list, the result of an operation."""
    for body in (answer, answer.get("response"), *answer.get("nodes", ()), *answer.get("queuedResources", ())):
        parts = str((body or {}).get("name", "")).split("/")
        if len(parts) == 6 and parts[4] in ("nodes", "queuedResources"):
            yield ("node" if parts[4] == "nodes" else "queuedResource"), body
