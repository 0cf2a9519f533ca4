"""The TPU API's answers, as Google's servers give them and as a later revision may: none loses what happened.

The forms are those recorded in GoogleCloudPlatform/k8s-config-connector
(mockgcp/mocktpu/testdata/node/crud/_http.log); what goes beyond them says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

from tests.support.json_api import JsonApi, json_api
from tpuctl.cloud.tpu import GoogleCloud
from tpuctl.engine.cloud_ports import TpuApi
from tpuctl.errors import BusyError, RateLimitedError, TpuctlError, TransientError
from tpuctl.model.cloud import NodeState, OperationInfo, QueuedState, Tier
from tpuctl.model.slice_spec import SliceSpec

ZONE = "us-central2-b"
PARENT = f"projects/p/locations/{ZONE}"
OPERATION = f"{PARENT}/operations/operation-1"
PENDING = {
    "metadata": {
        "@type": "type.googleapis.com/google.cloud.common.OperationMetadata",
        "apiVersion": "v2",
        "createTime": "2024-04-01T12:34:56.123456Z",
        "target": f"{PARENT}/nodes/a",
        "verb": "create",
    },
    "name": OPERATION,
}
UNHEARD_OF = {"@type": "type.googleapis.com/google.cloud.tpu.internal.Whatever", "deep": [{"x": 1}]}


@pytest.fixture
def served() -> Iterator[tuple[JsonApi, TpuApi]]:
    with json_api() as api:
        yield api, GoogleCloud("p", api.endpoint, Credentials(token="t"))


def ask(**changes: Any) -> tuple[str, SliceSpec]:
    """Id and specification of what is created."""
    values = {
        **{
            "hosts": 1,
            "chips": 4,
            "zone": ZONE,
            "accelerator_type": "v4-8",
            "runtime_version": "r",
            "tier": Tier.SPOT,
        },
        **{"labels": {"k": "v"}, "metadata": {}},
    }
    return "a", SliceSpec(**{**values, **changes})


CHANGES: dict[str, Callable[[TpuApi], OperationInfo | None]] = {
    "create a node": lambda cloud: cloud.create_node(*ask()),
    "create a node with a boot disk": lambda cloud: cloud.create_node(*ask(boot_disk_gib=200)),
    "create a queued resource": lambda cloud: cloud.create_queued(*ask()),
    "create a flex-start": lambda cloud: cloud.create_queued(*ask(tier=Tier.FLEX_START, run_duration_s=60.0)),
    "patch a node": lambda cloud: cloud.update_node(ZONE, "a", labels={}, metadata={}),
    "delete a node": lambda cloud: cloud.delete_node(ZONE, "a"),
    "delete a queued resource": lambda cloud: cloud.delete_queued(ZONE, "a"),
}


@pytest.mark.parametrize("said", [{}, {"done": False}], ids=["recorded", "said to be pending"])
def test_the_operation_of_a_change_is_read_as_google_writes_it(served, said):
    api, cloud = served
    api.answer = lambda _query: (200, {**PENDING, **said})
    for name, change in CHANGES.items():
        api.asked.clear()
        assert change(cloud) == OperationInfo(OPERATION, done=False), name
        assert len(api.asked) == 1, name


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"<html>", b"\xff", b'{"name": 0'])
def test_a_change_with_an_answer_that_makes_no_sense_is_looked_at_again(served, body):
    api, cloud = served
    api.answer = lambda _query: (200, body)
    for name, change in CHANGES.items():
        api.asked.clear()
        with pytest.raises(TransientError):
            change(cloud)
        assert len(api.asked) == 1, name


DENIED = {"code": 403, "message": "no", "status": "PERMISSION_DENIED"}
HALF_UNDERSTOOD = [
    {"error": {**DENIED, "details": None}},
    {"error": {**DENIED, "details": "none"}},
    {"error": {**DENIED, "details": [UNHEARD_OF, "x", None]}},
    {"error": {**DENIED, "details": [{"reason": "SERVICE_DISABLED", "metadata": ["x"]}]}},
    {"error": {**DENIED, "errors": {"reason": 1}}},
    {"error": {**DENIED, "status": 7}},
    {"error": "denied"},
    ["denied"],
]


@pytest.mark.parametrize("body", HALF_UNDERSTOOD)
def test_a_refusal_that_is_half_understood_is_still_a_refusal(served, body):
    api, cloud = served
    api.answer = lambda _query: (403, body)
    for name, change in CHANGES.items():
        with pytest.raises(TpuctlError) as caught:
            change(cloud)
        assert caught.value.code == "denied", name


def queued(name: str, **failed: Any) -> dict[str, Any]:
    node = {"acceleratorType": "v4-8", "labels": {"k": name}}
    return {
        "name": f"{PARENT}/queuedResources/{name}",
        "tpu": {"nodeSpec": [{"parent": PARENT, "nodeId": name, "node": node}]},
        "spot": {},
        "state": {"state": "FAILED", "failedData": {"error": {"code": 13, "message": "m", **failed}}},
    }


def test_one_request_with_details_of_an_unknown_type_hides_no_other(served):
    api, cloud = served
    strange = queued("strange", details=[UNHEARD_OF])
    api.answer = lambda _query: (200, {"queuedResources": [strange, queued("plain")]})
    found = cloud.list_queued().items
    assert [(each.name, each.labels["k"], each.error.code) for each in found] == [
        ("strange", "strange", 13),
        ("plain", "plain", 13),
    ]
    assert found[0].error.details[0]["@type"] == UNHEARD_OF["@type"]


NODE = {
    "acceleratorType": "v5p-8",
    "id": "123",
    "name": f"{PARENT}/nodes/a",
    "networkEndpoints": [{"accessConfig": {}, "ipAddress": "10.0.0.2", "port": 8470}],
    "schedulingConfig": {},
    "state": "READY",
}


def test_fields_and_values_of_a_later_revision_are_passed_over(served):
    api, cloud = served
    later = {"state": "LEVITATING", "health": "PERFECT", "mood": {"@type": "x"}, "labels": None}
    api.answer = lambda _query: (200, {"nodes": [NODE, {**NODE, **later}], "weather": "fine"})
    plain, strange = cloud.list_nodes(ZONE).items
    assert (plain.state, plain.uid, plain.endpoints[0].external_ip) == (NodeState.READY, "123", None)
    assert (strange.name, strange.state, strange.labels) == ("a", NodeState.UNKNOWN, {})
    api.answer = lambda _query: (200, {**queued("a"), "state": {"state": "DREAMING", "stateInitiator": "MOON"}})
    found = cloud.find_queued(ZONE, "a")
    assert (found.state, found.initiator, found.error) == (QueuedState.UNKNOWN, "", None)


@pytest.mark.parametrize("key", sorted({*NODE, "tpu", "metadata", "error", "done"} - {"name"}))
def test_a_field_of_another_type_loses_nothing_but_itself(served, key):
    api, cloud = served
    for strange in (None, 1, "x", [], {}, True, [None], {"a": None}):
        api.answer = lambda _query, it=strange: (200, {**NODE, key: it})
        assert cloud.find_node(ZONE, "a").name == "a", strange
        api.answer = lambda _query, it=strange: (200, {**queued("a"), key: it})
        assert cloud.find_queued(ZONE, "a").name == "a", strange
        api.answer = lambda _query, it=strange: (200, {**PENDING, key: it})
        assert cloud.find_operation(OPERATION).name == OPERATION, strange


def test_an_operation_that_failed_says_why_although_the_details_are_of_an_unknown_type(served):
    api, cloud = served
    error = {"code": 8, "message": "There is no more capacity", "details": [UNHEARD_OF]}
    api.answer = lambda _query: (200, {**PENDING, "done": True, "error": error})
    found = cloud.find_operation(OPERATION)
    assert (found.done, found.error.code, found.error.message) == (True, 8, "There is no more capacity")


def test_a_list_says_which_zones_were_not_read_on_any_page(served):
    api, cloud = served
    pages = {"": {"unreachable": [PARENT], "nextPageToken": "2"}, "2": {"nodes": [NODE]}}
    api.answer = lambda query: (200, pages[query.get("pageToken", "")])
    found = cloud.list_nodes()
    assert ([each.name for each in found.items], found.unreachable) == (["a"], frozenset({ZONE}))


def refusal(status: int, name: str, message: str) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"code": status, "message": message, "status": name}}


NOT_NOW = [
    ("patch a node", refusal(409, "ABORTED", "unable to queue the operation")),
    ("patch a node", refusal(409, "ALREADY_EXISTS", "there is an operation in progress")),
    ("patch a node", refusal(400, "FAILED_PRECONDITION", "update is not possible now")),
    ("delete a node", refusal(409, "ABORTED", "unable to queue the operation")),
    ("delete a node", refusal(400, "INVALID_ARGUMENT", "delete is not supported while in state CREATING")),
    ("delete a queued resource", refusal(400, "FAILED_PRECONDITION", "Resource is not in a deletable state")),
    ("delete a queued resource", (409, b"")),
    ("create a queued resource", refusal(409, "ABORTED", "unable to queue the operation")),
    ("create a node", refusal(400, "FAILED_PRECONDITION", "the network is being changed")),
]


@pytest.mark.parametrize(("change", "said"), NOT_NOW)
def test_a_refusal_that_means_not_now_is_told_from_one_for_good(served, change, said):
    api, cloud = served
    api.answer = lambda _query: said
    with pytest.raises(BusyError):
        CHANGES[change](cloud)
    assert len(api.asked) == 1


FOR_GOOD = [
    ("create a node", refusal(409, "ALREADY_EXISTS", "Resource already exists"), "conflict"),
    ("create a node", refusal(400, "INVALID_ARGUMENT", "Invalid node id"), "invalid-request"),
    (
        "patch a node",
        refusal(400, "INVALID_ARGUMENT", "update is not supported while in state PREEMPTED"),
        None,
    ),
    ("delete a node", refusal(403, "PERMISSION_DENIED", "Permission 'tpu.nodes.delete' denied"), "denied"),
]


@pytest.mark.parametrize(("change", "said", "code"), FOR_GOOD)
def test_a_refusal_for_good_stays_one(served, change, said, code):
    api, cloud = served
    api.answer = lambda _query: said
    with pytest.raises(TpuctlError) as caught:
        CHANGES[change](cloud)
    assert caught.value.code == (code or "invalid-request")


@pytest.mark.parametrize(
    "message",
    ["Resource has been exhausted (e.g. check quota).", "Quota limit 'X' has been exceeded. Limit: 0.", ""],
)
@pytest.mark.parametrize(
    "read",
    [
        lambda cloud: cloud.list_nodes(),
        lambda cloud: cloud.find_queued(ZONE, "a"),
        lambda cloud: cloud.find_operation(OPERATION),
        lambda cloud: cloud.list_host_keys(ZONE, "a"),
    ],
    ids=["list", "get", "operation", "guest attributes"],
)
def test_too_many_reads_are_no_want_of_capacity(served, read, message):
    api, cloud = served
    api.answer = lambda _query: refusal(429, "RESOURCE_EXHAUSTED", message)
    with pytest.raises(RateLimitedError):
        read(cloud)
