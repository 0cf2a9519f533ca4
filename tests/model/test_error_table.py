# ruff: noqa: E501 (the texts are literal)
from __future__ import annotations

import pytest

from tpuctl.model.error_table import ErrorKind, classify, find_hint
from tpuctl.model.shipped_files import load_error_table

TABLE = load_error_table()

LITERAL = [
    (429, 8, "stockout", 'There is no more capacity in the zone "europe-west4-a"; you can try in another zone where Cloud TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions) [EID: 0x1bc8f9d790be9142]'),
    (400, 9, "stockout", "Insufficient reserved capacity. Contact customer support to increase your reservation. [EID: 0x1]"),
    (None, 8, "stockout", "Insufficient reserved capacity. Contact customer support to increase your reservation. [EID: 0x1]"),
    (400, 3, "invalid", "Cloud TPU received a bad request. update is not supported while in state PREEMPTED [EID: 0x73013519f5b7feb2]"),
    (429, 8, "quota", "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region us-east5."),
    (429, None, "quota", "Quota limit 'TPUV2sPodPerProjectPerRegionForTPUAPI,TPUV2sPodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0,0 in region us-central1,zone us-central1-a."),
    (None, 8, "quota", "Quota 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' exhausted. Limit 20800 in region us-central2"),
    (429, 8, "rate-limit", "Quota exceeded: Maximum number of CreateNode requests per minute"),
    (400, 3, "invalid", 'Cloud TPU received a bad request. The requested accelerator configuration for accelerator type, "v6e-1", could not be found in the zonal accelerator configurations for "asia-east1-a".; the accelerator v6e-1 was not found in zone asia-east1-a [EID: 0x1]'),
    (400, 3, "invalid", 'Cloud TPU received a bad request. The requested zone "asia-northeast1-a" is not supported. [EID: 0x1]'),
    (400, 3, "invalid", 'CloudTpu received an invalid AcceleratorType, "v3-8" for zone "us-central1-c". Valid values are "v2-8, ".'),
    (None, 3, "invalid", 'FLEX_START provisioning model is not supported for accelerator type "v6e-1" in location "asia-east1-c"'),
    (403, 7, "denied", "Location us-east1-d is not found or access is unauthorized."),
    (403, 7, "denied", "Permission denied on 'locations/us-central2-b' (or it may not exist)."),
    (403, 7, "denied", "Permission 'tpu.nodes.list' denied on 'projects/p/locations/us-central2-b'"),
    (429, 8, "side-quota", "RESOURCE_EXHAUSTED: You have reached HEALTH_CHECKS limit"),
    (429, 8, "side-quota", "Quota 'IN_USE_ADDRESSES' exceeded. Limit: 8.0 in region us-east1."),
    (None, None, "invalid", "STANDARD provisioning model incompatible with spot requests"),
]  # fmt: skip


@pytest.mark.parametrize(("http", "rpc", "kind", "message"), LITERAL)
def test_every_known_text_has_its_kind(http, rpc, kind, message):
    assert classify(TABLE, http_status=http, rpc_code=rpc, message=message) == kind


@pytest.mark.parametrize("rule", TABLE.rules, ids=lambda rule: rule.pattern.pattern)
def test_every_rule_matches_its_own_example_first(rule):
    assert TABLE.match(rule.example) is rule


@pytest.mark.parametrize(
    ("http", "rpc", "status", "kind"),
    [
        (400, None, None, "invalid"),
        (401, None, None, "denied"),
        (403, None, None, "denied"),
        (404, None, None, "not-found"),
        (409, None, None, "conflict"),
        (409, None, "ABORTED", "transient"),
        (412, None, None, "conflict"),
        (429, None, None, "stockout"),
        (500, None, None, "transient"),
        (503, None, None, "transient"),
        (None, 5, None, "not-found"),
        (None, 6, None, "conflict"),
        (None, 8, None, "stockout"),
        (None, 13, None, "transient"),
        (None, 14, None, "transient"),
        (None, 16, None, "denied"),
        (None, None, None, "transient"),
        (None, 99, None, "transient"),
        (400, None, "FAILED_PRECONDITION", "invalid"),
    ],
)
def test_unknown_text_goes_by_status(http, rpc, status, kind):
    assert classify(TABLE, http_status=http, rpc_code=rpc, status=status, message="something new") == kind


def test_an_internal_error_of_a_queued_resource_is_a_stockout():
    message = "an internal error has occurred"
    assert classify(TABLE, rpc_code=13, message=message, queued=True) is ErrorKind.STOCKOUT
    assert classify(TABLE, rpc_code=13, message=message) is ErrorKind.TRANSIENT


def test_no_text_turns_not_found_into_anything_else():
    for rule in TABLE.rules:
        assert classify(TABLE, http_status=404, message=rule.example) is ErrorKind.NOT_FOUND


def test_details_come_before_the_text():
    quota = {"@type": "type.googleapis.com/google.rpc.QuotaFailure"}
    rate = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "RATE_LIMIT_EXCEEDED"}
    assert classify(TABLE, http_status=429, message="new words", details=[quota]) is ErrorKind.QUOTA
    assert classify(TABLE, http_status=429, message="new words", details=[rate]) is ErrorKind.RATE_LIMIT
    assert classify(TABLE, http_status=403, details=[{"reason": "rateLimitExceeded"}]) is ErrorKind.RATE_LIMIT


def test_hints_come_with_the_rule():
    assert "IN_USE_ADDRESSES" in (find_hint(TABLE, LITERAL[16][3]) or "")
    assert find_hint(TABLE, "something new") is None
