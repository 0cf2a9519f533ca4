"""What Compute Engine refuses about disks, as users quote it: each has its class, and says what to type."""

from __future__ import annotations

import pytest
from google.api_core import exceptions as api

from tpuctl.cloud.errors import translate
from tpuctl.disks.make import operation_error
from tpuctl.errors import (
    InvalidRequestError,
    QuotaError,
    RateLimitedError,
    TpuctlError,
    TransientError,
)
from tpuctl.model.disks import ComputeOperation

DISK = "projects/p/zones/z/disks/data"
DOCUMENTED: list[tuple[str, str, type[TpuctlError], str]] = [
    (
        "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE",
        f"The disk resource '{DISK}' is already being used by 'projects/p/zones/z/instances/dev-w-0'",
        InvalidRequestError,
        "tpuctl disk ls",
    ),
    (
        "INVALID_USAGE",
        "hyperdisk-balanced disk type cannot be attached in read-only mode.",
        InvalidRequestError,
        "tpuctl disk clone",
    ),
    (
        "INVALID_USAGE",
        "[pd-extreme] features and [instance_type: VIRTUAL_MACHINE] InstanceTaxonomies are not compatible for "
        "creating instance.",
        InvalidRequestError,
        "tpuctl disk clone",
    ),
    (
        "UNSUPPORTED_OPERATION",
        "Maximum hyperdisk-balanced disks count should be less than or equal to [16], Requested : [17]",
        InvalidRequestError,
        "tpuctl disk detach",
    ),
    (
        "INVALID_USAGE",
        "Cannot specify the multi writer field for 'hyperdisk-balanced' disks, please use access mode instead.",
        InvalidRequestError,
        "tpuctl disk clone",
    ),
    (
        "INVALID_USAGE",
        "Requested disk size cannot be smaller than the snapshot size (500 GB).",
        InvalidRequestError,
        "at least the size",
    ),
    (
        "INVALID_USAGE",
        "New disk size '10' GiB must be larger than existing size '20' GiB.",
        InvalidRequestError,
        "only grow",
    ),
    (
        "INVALID_USAGE",
        "The source disk must be in the same zone/region as the disk.",
        InvalidRequestError,
        "tpuctl disk clone --zone",
    ),
    (
        "RESOURCE_OPERATION_RATE_EXCEEDED",
        f"Operation rate exceeded for resource '{DISK}'. Too frequent operations from the source resource.",
        RateLimitedError,
        "wait ten minutes",
    ),
    (
        "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED",
        "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED: too many operations on this project at once",
        RateLimitedError,
        "again",
    ),
    ("RESOURCE_NOT_READY", f"The resource '{DISK}' is not ready", TransientError, "try again"),
    *(
        (
            "QUOTA_EXCEEDED",
            f"Quota '{quota}' exceeded.  Limit: 500.0 in region r.",
            QuotaError,
            "tpuctl disk gc",
        )
        for quota in ("DISKS_TOTAL_GB", "SSD_TOTAL_GB", "HDB_TOTAL_GB", "HDML_TOTAL_GB", "SNAPSHOTS")
    ),
]
IDS = [" ".join(row[1].split()[:4]) for row in DOCUMENTED]


@pytest.mark.parametrize(("code", "text", "wanted", "hint"), DOCUMENTED, ids=IDS)
def test_what_an_operation_failed_with_is_said_with_what_to_do(
    code: str, text: str, wanted: type[TpuctlError], hint: str
) -> None:
    found = operation_error(ComputeOperation("/operations/o", done=True, error=text, code=code))
    assert type(found) is wanted
    assert (found.message, found.details) == (text, {"code": code})
    assert hint in str(found.hint)


@pytest.mark.parametrize(("code", "text", "wanted", "hint"), DOCUMENTED, ids=IDS)
def test_a_call_that_is_refused_so_is_said_the_same(
    code: str, text: str, wanted: type[TpuctlError], hint: str
) -> None:
    status = 403 if code == "QUOTA_EXCEEDED" else 400
    refused = api.from_http_status(status, text)  # type: ignore[no-untyped-call]
    found = translate(refused, "create disk data in z")
    assert type(found) is wanted
    assert found.message == f"could not create disk data in z: {text}"
    assert hint in str(found.hint)


def test_what_nobody_documented_is_said_in_its_own_words() -> None:
    found = operation_error(ComputeOperation("/operations/o", done=True, error="new words", code="NEW"))
    assert (type(found), found.message, found.hint) == (TpuctlError, "new words", None)
