"""The filters of list calls: what users' tools send, what it selects, and what is refused."""

from __future__ import annotations

import pytest

from tpuctl.sim.wire.filters import MAX_LENGTH, parse_filter
from tpuctl.sim.wire.status import ApiError

DISKS = [
    {"name": "d1", "sizeGb": "10", "status": "READY", "labels": {"ray-cluster-name": "c", "owner": "a b"}},
    {
        "name": "d2",
        "sizeGb": "200",
        "status": "CREATING",
        "zone": "https://x/zones/us-central2-b",
        "users": ["u1"],
    },
    {"name": "other", "sizeGb": "30", "status": "READY", "spot": True, "labels": {"snake_key": "v"}},
]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "d1 d2 other"),
        ("name=d1", "d1"),
        ("name = d1", "d1"),
        ('name = "d1"', "d1"),
        ("name='d1'", "d1"),
        ("name != d1", "d2 other"),
        ("name=d*", "d1 d2"),
        ("name eq d.", "d1 d2"),
        ('name eq ".*\\bd1\\b.*"', "d1"),
        ("name ne d.", "other"),
        ("name:THE", "other"),
        ("sizeGb>20", "d2 other"),
        ("sizeGb >= 30", "d2 other"),
        ("size_gb<20", "d1"),
        ("labels.ray-cluster-name = c", "d1"),
        ("labels.snake_key=v", "other"),
        ("labels.owner:*", "d1"),
        ('labels.owner="a b"', "d1"),
        ("-labels.owner:*", "d2 other"),
        ("NOT labels.owner:*", "d2 other"),
        ("spot=true", "other"),
        ("users:u1", "d2"),
        ("zone:us-central2-b", "d2"),
        ("(status = READY) (name = other)", "other"),
        ("status = READY AND name = other", "other"),
        ("(status = READY) OR (status=CREATING)", "d1 d2 other"),
        ("((status = READY) OR (status = STAGING)) AND (labels.ray-cluster-name = c)", "d1"),
        ("status=READY AND name=d1 OR name=d2", "d1"),
        ("name=nobody", ""),
    ],
)
def test_a_filter_selects(text: str, names: str) -> None:
    assert [each["name"] for each in filter(parse_filter(text), DISKS)] == names.split()


@pytest.mark.parametrize(
    "text",
    [
        "name",
        "name=",
        "(name=a",
        "name=a)",
        "=a",
        "((((",
        "name eq (",
        'name eq "["',
        "AND",
        "name=a OR",
        "NOT",
        ")",
        "(" * 100 + "name=a" + ")" * 100,
        'name eq "a{1,99999999999}"',
        "name=" + "a" * MAX_LENGTH,
    ],
)
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_filter(text)
    assert caught.value.code.name == "INVALID_ARGUMENT"
    assert "Invalid list filter expression" in caught.value.message
