"""What the simulated APIs take for the types of the API, and in which words they refuse the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.cloud import tpu_v2, tpu_v2alpha1

from tpuctl.sim.wire.messages import Request
from tpuctl.sim.wire.payload import MAX_BODY, load_types, parse_body, read_message, read_query
from tpuctl.sim.wire.status import ApiError

V2 = load_types("tpu.v2")
PACKAGE = "type.googleapis.com/google.cloud.tpu.v2"


def refusal(kind: str, value: Any, where: str = "node") -> str:
    with pytest.raises(ApiError) as caught:
        read_message(V2, kind, value, where)
    assert caught.value.code.name == "INVALID_ARGUMENT"
    [detail] = caught.value.details
    assert detail["@type"] == "type.googleapis.com/google.rpc.BadRequest"
    assert "\n".join(each["description"] for each in detail["fieldViolations"]) == caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ({"networkConfig": "x"}, f"Invalid value at 'node.network_config' ({PACKAGE}.NetworkConfig), \"x\""),
        (
            {"networkConfig": {"bogus": 1}},
            "Invalid JSON payload received. "
            "Unknown name \"bogus\" at 'node.network_config': Cannot find field.",
        ),
        ({"bogus": 1}, "Invalid JSON payload received. Unknown name \"bogus\" at 'node': Cannot find field."),
        (
            {"dataDisks": [{"mode": "BOGUS"}]},
            f"Invalid value at 'node.data_disks[0].mode' ({PACKAGE}.AttachedDisk.DiskMode), \"BOGUS\"",
        ),
        ({"metadata": "x"}, "Invalid value at 'node.metadata' (TYPE_MAPENTRY), \"x\""),
        ({"labels": {"a": 5}}, "Invalid value at 'node.labels[0].value' (TYPE_STRING), 5"),
        ({"description": 5}, "Invalid value at 'node.description' (TYPE_STRING), 5"),
        (
            {"description": {}},
            "Invalid value at 'node.description' (TYPE_STRING), Starting an object on a scalar field",
        ),
        (
            {"description": ["x"]},
            "Invalid JSON payload received. Unknown name \"description\" at 'node': "
            "Proto field is not repeating, cannot start list.",
        ),
        (
            {"schedulingConfig": {"spot": "maybe"}},
            "Invalid value at 'node.scheduling_config.spot' (TYPE_BOOL), \"maybe\"",
        ),
        ({"state": 999}, f"Invalid value at 'node.state' ({PACKAGE}.Node.State), 999"),
        ({"id": "1.5"}, "Invalid value at 'node.id' (TYPE_INT64), \"1.5\""),
        ({"id": 2**63}, f"Invalid value at 'node.id' (TYPE_INT64), {2**63}"),
        (
            {"networkConfig": {"queueCount": True}},
            "Invalid value at 'node.network_config.queue_count' (TYPE_INT32), true",
        ),
        (
            {"createTime": "yesterday"},
            "Invalid value at 'node.create_time' (type.googleapis.com/google.protobuf.Timestamp), "
            "Field 'createTime', Invalid time format: yesterday",
        ),
        ({"tags": [["x"]]}, "Invalid value at 'node.tags[0]' (TYPE_STRING), [\"x\"]"),
    ],
)
def test_what_does_not_fit_is_refused_in_googles_words(node: Any, text: str) -> None:
    assert refusal("Node", node) == text


def test_details_of_a_status_are_objects() -> None:
    detail = {"@type": "x", "a": [1]}
    assert read_message(V2, "Status", {"details": [detail]}) == {"details": [detail]}
    assert refusal("Status", {"details": ["x"]}, "error") == (
        "Invalid value at 'error.details[0]' (TYPE_MAPENTRY), \"x\""
    )


def test_durations_end_with_s() -> None:
    text = refusal("QueuedResource", {"queueingPolicy": {"validUntilDuration": "6h"}}, "queued_resource")
    assert text == (
        "Invalid value at 'queued_resource.queueing_policy.valid_until_duration' "
        "(type.googleapis.com/google.protobuf.Duration), Field 'validUntilDuration', "
        "Illegal duration format; duration must end with 's'"
    )


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (
            {"queueingPolicy": {"validUntilDuration": "5s", "validAfterTime": "2026-01-01T00:00:00Z"}},
            "Invalid value at 'queued_resource.queueing_policy' (oneof), "
            "oneof field 'start_timing_constraints' is already set. Cannot set 'validAfterTime'",
        ),
        (
            {"spot": {}, "guaranteed": {}},
            "Invalid value at 'queued_resource' (oneof), oneof field 'tier' is already set. "
            "Cannot set 'guaranteed'",
        ),
    ],
)
def test_of_a_choice_one_can_be_said(request_: Any, text: str) -> None:
    assert refusal("QueuedResource", request_, "queued_resource") == text


def test_everything_that_does_not_fit_is_told_at_once() -> None:
    assert len(refusal("Node", {"bogus": 1, "description": 5, "networkConfig": []}).splitlines()) == 3


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"id": 5}, {"id": "5"}),
        ({"id": "5"}, {"id": "5"}),
        ({"id": 5.0}, {"id": "5"}),
        ({"state": 2}, {"state": "READY"}),
        ({"state": "2"}, {"state": "READY"}),
        ({"state": "STATE_UNSPECIFIED"}, {}),
        ({"network_config": {"enable_external_ips": True}}, {"networkConfig": {"enableExternalIps": True}}),
        ({"schedulingConfig": {"spot": False}}, {"schedulingConfig": {}}),
        ({"schedulingConfig": {"spot": "true"}}, {"schedulingConfig": {"spot": True}}),
        ({"description": None, "tags": None}, {}),
        ({"tags": "one"}, {"tags": ["one"]}),
        ({"dataDisks": {"sourceDisk": "d"}}, {"dataDisks": [{"sourceDisk": "d"}]}),
        ({"labels": {"a": ""}}, {"labels": {"a": ""}}),
        ({"createTime": "2026-01-02T03:04:05+01:00"}, {"createTime": "2026-01-02T02:04:05Z"}),
        ({"createTime": "2026-01-02T03:04:05.1200Z"}, {"createTime": "2026-01-02T03:04:05.120Z"}),
        ({"createTime": "2026-01-02T03:04:05.123456Z"}, {"createTime": "2026-01-02T03:04:05.123456Z"}),
    ],
)
def test_what_proto3s_json_takes_is_taken(given: Any, read: Any) -> None:
    assert read_message(V2, "Node", given) == read


def test_query_parameters_have_types_too() -> None:
    assert read_query(V2, "DeleteQueuedResource", {"force": ["True"], "alt": ["json"]}) == {"force": True}
    assert read_query(V2, "ListNodes", {"page_size": ["5"], "$alt": ["json;enum-encoding=int"]}) == {
        "pageSize": 5
    }
    for query, text in (
        ({"pageSize": ["x"]}, "Invalid value at 'page_size' (TYPE_INT32), \"x\""),
        (
            {"zone": ["x"]},
            'Invalid JSON payload received. Unknown name "zone": Cannot bind query parameter. '
            "Field 'zone' could not be found in request message.",
        ),
    ):
        with pytest.raises(ApiError) as caught:
            read_query(V2, "ListNodes", query)
        assert caught.value.message == text


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"a": NaN}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"x" * (MAX_BODY + 1),
    ],
)
def test_bodies_that_are_no_json_object_of_a_bearable_size_are_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_body(Request("POST", "/", {}, {}, body))
    assert caught.value.code.name == "INVALID_ARGUMENT"


def test_half_of_a_surrogate_pair_is_no_string() -> None:
    assert "TYPE_STRING" in refusal("Node", json.loads('{"description": "\\ud800"}'))


@pytest.mark.parametrize(("api", "library"), [("tpu.v2", tpu_v2), ("tpu.v2alpha1", tpu_v2alpha1)])
def test_the_table_of_types_agrees_with_the_installed_library(api: str, library: Any) -> None:
    types = load_types(api)
    seen: set[str] = set()

    def compare(message: Any) -> None:
        name = message.full_name.removeprefix(f"{types.package}.")
        if name in seen or name not in types.messages:
            return
        seen.add(name)
        for each in message.fields:
            kind = types.messages[name][each.json_name].strip("[{]}")
            if each.enum_type:
                numbers = {value.name: value.number for value in each.enum_type.values}
                assert types.enums[kind] == numbers, each.full_name
            elif each.message_type and each.message_type.full_name.startswith(types.package):
                inner = each.message_type
                if not inner.GetOptions().map_entry:
                    assert kind == inner.full_name.removeprefix(f"{types.package}."), each.full_name
                    compare(inner)

    for root in (library.Node, library.QueuedResource):
        compare(root.pb().DESCRIPTOR)
    assert len(seen) > 25
