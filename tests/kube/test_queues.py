"""What Kueue's objects say of queues and of who waits."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.kube.schema import KUEUE_PATH, stand_ins
from tests.support.kube_objects import cluster_queue, local_queue, workload
from tpuctl.kube.queues import flavor_rows, pod_chips, quantity, waiting_rows

KUEUE = json.loads(KUEUE_PATH.read_text())
KINDS = [(kind, version) for kind in stand_ins() for version in KUEUE[kind]]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (4, 4),
        ("32", 32),
        ("1k", 1000),
        ("2M", 2_000_000),
        ("1G", 10**9),
        ("2Ki", 2048),
        ("1e9", 10**9),
        ("", 0),
        ("4.5", 0),
        (None, 0),
    ],
)
def test_quantities_are_read_as_kubernetes_writes_them(written: Any, meant: int) -> None:
    assert quantity(written) == meant


def test_chips_of_all_containers_count_once_whether_limited_or_requested() -> None:
    limited = {"resources": {"limits": {"google.com/tpu": 2}}}
    both = {"resources": {"limits": {"google.com/tpu": 2}, "requests": {"google.com/tpu": 2}}}
    assert pod_chips({"containers": [limited, both, {"name": "beside"}]}) == 4


def test_quota_and_use_are_told_by_flavor_with_the_queues_that_lead_there() -> None:
    queue = cluster_queue("tpu-cq", {"v6e-4x4": 32, "v5e-2x4": 8}, used={"v6e-4x4": 24})
    [first, second] = flavor_rows([queue], [local_queue("tpu", "tpu-cq"), local_queue("dev", "other")])
    assert (first.flavor, first.quota, first.used, first.free, first.queues) == (
        "v6e-4x4", 32, 24, 8, ("default/tpu",),
    )  # fmt: skip
    assert (second.flavor, second.free) == ("v5e-2x4", 8)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"spec": {"stopPolicy": "HoldAndDrain"}}, "stopped (HoldAndDrain)"),
        (
            {"status": {"conditions": [{"type": "Active", "status": "False", "message": "no flavor"}]}},
            "no flavor",
        ),
        ({}, ""),
    ],
)
def test_why_a_queue_admits_nothing_is_told(changes: dict[str, Any], why: str) -> None:
    queue = cluster_queue("tpu-cq", {"v6e": 8})
    changed = {**queue, **{key: {**queue[key], **value} for key, value in changes.items()}}
    assert flavor_rows([changed], [])[0].stopped == why


def test_those_that_wait_have_their_place_by_priority_and_age_in_their_own_queue() -> None:
    rows = waiting_rows(
        [
            workload("late", queue="tpu", chips=16, created="2026-11-26T12:10:00Z"),
            workload("early", queue="tpu", chips=16, created="2026-11-26T12:00:00Z"),
            workload("urgent", queue="tpu", chips=4, created="2026-11-26T12:20:00Z", priority=10),
            workload("elsewhere", queue="dev", chips=4, created="2026-11-26T12:15:00Z"),
            workload("runs", queue="tpu", chips=4, admitted=True),
            workload("lost", queue="nobody", chips=4, created="2026-11-26T12:16:00Z"),
        ],
        [local_queue("tpu", "tpu-cq"), local_queue("dev", "dev-cq")],
    )
    assert [(row.name, row.position, row.chips) for row in rows] == [
        ("urgent", 1, 4), ("early", 2, 16), ("late", 3, 16), ("elsewhere", 1, 4), ("lost", None, 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"why": "insufficient unused quota for google.com/tpu in flavor v6e, 8 more needed"}, "8 more needed"),
        (
            {"checks": [{"name": "dws", "state": "Pending", "message": "no capacity yet"}]},
            "dws: no capacity yet",
        ),
        ({"checks": [{"name": "dws", "state": "Pending"}]}, "waits for dws"),
        ({"active": False}, "deactivated"),
        ({}, "has not looked at it yet"),
    ],
)
def test_why_it_waits_is_told_in_kueues_words(given: dict[str, Any], told: str) -> None:
    [row] = waiting_rows([workload("big", queue="tpu", chips=4, **given)], [local_queue("tpu", "tpu-cq")])
    assert told in row.reason


@pytest.mark.parametrize(("kind", "version"), KINDS)
def test_what_is_read_of_kueue_is_in_its_schemas(kind: str, version: str) -> None:
    schema = jsonschema.Draft202012Validator(KUEUE[kind][version])
    for each in stand_ins()[kind]:
        assert [error.message for error in schema.iter_errors(each)] == []
        assert list(schema.iter_errors({**each, "spec": {**each["spec"], "nodeLabel": {}}}))


def test_the_name_of_a_cohort_is_that_of_each_version() -> None:
    names = {
        version: set(KUEUE["clusterqueues"][version]["properties"]["spec"]["properties"])
        for version in KUEUE["clusterqueues"]
    }
    assert {version: sorted(found & {"cohort", "cohortName"}) for version, found in names.items()} == {
        "v1beta1": ["cohort"],
        "v1beta2": ["cohortName"],
    }
