"""Which fields the versions of the TPU API show: the same resources, seen through the types of each."""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import cache

from tpuctl.sim.wire.payload import load_types
from tpuctl.sim.wire.status import Json

OLD, ALPHA = "v1", "v2alpha1"
UNDOCUMENTED = frozenset({"bootDisk", "useTpuVm"})
"""Fields of nodes in queued resources that are in no discovery document and that the API shows all the same.
Results of operations are without them: Google's Python library cannot read those over REST then."""
_TYPE = "type.googleapis.com/google.cloud.tpu."


def show(version: str, answer: Json) -> Json:
    """`answer` without what `version` does not know. Changes `answer`, which belongs to the caller."""
    if version == OLD:
        answer = _as_old(answer)
    for shown_by, message, body in _shown(version, answer):
        kept = ("@type",) if "@type" in body else UNDOCUMENTED
        _prune(f"tpu.{shown_by}", message, body, kept)
    return answer


def _shown(version: str, answer: Json) -> Iterator[tuple[str, str, Json]]:
    """(version, message, body) of the nodes and queued resources in an answer: itself, those of a list, and the
    results of operations, which belong to the version that began them."""
    for body in (answer, *answer.get("nodes", ()), *answer.get("queuedResources", ())):
        collection = str(body.get("name", "")).split("/")[4:5]
        if collection in (["nodes"], ["queuedResources"]):
            yield version, "Node" if collection == ["nodes"] else "QueuedResource", body
    for operation in (answer, *answer.get("operations", ())):
        begun_by, _, message = (
            str((operation.get("response") or {}).get("@type")).removeprefix(_TYPE).partition(".")
        )
        if message in ("Node", "QueuedResource"):
            yield begun_by, message, operation["response"]


def _prune(api: str, message: str, body: Json, kept: Container[str]) -> None:
    plain, types = _plain_fields(api, message), load_types(api)
    for name in [name for name in body if name not in plain]:
        value, kind = body[name], types.messages[message].get(name, "").removeprefix("[").removesuffix("]")
        if kind in types.messages:
            for inner in value if isinstance(value, list) else [value]:
                _prune(api, kind, inner, kept)
        elif kind in types.enums and value not in types.enums[kind]:
            # A node made by v2 is one of the newest version that an older one can name.
            body[name] = max(types.enums[kind], key=types.enums[kind].__getitem__)
        elif not kind and name not in kept:
            del body[name]


@cache
def _plain_fields(api: str, message: str) -> frozenset[str]:
    """Fields of a message in which there is nothing to look at, which are most."""
    types = load_types(api)
    seen = types.messages.keys() | types.enums.keys()
    fields = types.messages[message].items()
    return frozenset(name for name, kind in fields if kind.removeprefix("[").removesuffix("]") not in seen)


def _as_old(answer: Json) -> Json:
    """Renames what version 1 calls otherwise."""
    for node in (answer, *answer.get("nodes", ())):
        if "/nodes/" in str(node.get("name")):
            endpoints = node.get("networkEndpoints") or [{}]
            node |= {
                "tensorflowVersion": node.get("runtimeVersion", ""),
                "network": (node.get("networkConfig") or {}).get("network", ""),
                "ipAddress": endpoints[0].get("ipAddress", ""),
                "port": str(endpoints[0].get("port", "")),
                "serviceAccount": (node.get("serviceAccount") or {}).get("email", ""),
            }
    for accelerator in (answer, *answer.get("acceleratorTypes", ())):
        accelerator.pop("acceleratorConfigs", None)
    return answer
