"""Which APIs are read, and what it means that one of them refuses."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.builders import a_slice
from tpuctl.errors import DeniedError
from tpuctl.inventory.listing import TpuLists, apis_in_use
from tpuctl.model.cloud import Api, Listing
from tpuctl.model.records import SliceState

ON_TPU = a_slice()
ON_COMPUTE = replace(ON_TPU, spec=replace(ON_TPU.spec, api=Api.COMPUTE))


@pytest.mark.parametrize(
    ("records", "apis"),
    [
        ((), set()),
        ((ON_TPU,), {Api.TPU}),
        ((ON_COMPUTE,), {Api.COMPUTE}),
        ((ON_TPU, replace(ON_COMPUTE, state=SliceState.GONE)), {Api.TPU, Api.COMPUTE}),
    ],
)
def test_an_api_is_in_use_where_a_slice_is_or_was_made_by_it(records, apis):
    assert apis_in_use(records) == apis


def test_what_compute_engine_refuses_to_list_is_not_gone():
    nothing = Listing(())
    off = DeniedError("Compute Engine API has not been used in project")
    refused = TpuLists(nothing, nothing, {Api.COMPUTE: off})
    assert refused.is_dark("us-central1-c", Api.COMPUTE)
    assert not refused.is_dark("us-central1-c", Api.TPU)
    dark = TpuLists(Listing((), frozenset({"us-central1-c"})), nothing)
    assert dark.is_dark("us-central1-c", Api.TPU)
