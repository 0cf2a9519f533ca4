"""Quotas of a race: what is asked for at the same time is added up before it is asked for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.jobs import SPEC
from tests.support.memory.buckets import NearBuckets
from tests.support.memory.services import MemoryPlace
from tpuctl.errors import QuotaError
from tpuctl.model.hosts import Api
from tpuctl.model.quota import ComputeQuota, ProjectInfo, TpuQuota
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.money.quota_report import check_side_quotas

RACE = replace(SPEC, accelerator_type="v6e-8", runtime_version="v2-alpha-tpuv6e", hosts=2, chips=8, race=True)
NEAR, NEXT, FAR = (replace(RACE, zone=zone) for zone in ("us-east5-a", "us-east5-b", "europe-west4-a"))
LARGE = replace(NEAR, accelerator_type="v6e-16", chips=16)


class Project(NearBuckets):
    """So many addresses are free in us-east5 and in all, and so many chips in its zone a."""

    def __init__(self, addresses: int, everywhere: int, chips: int) -> None:
        self._addresses, self._everywhere, self._chips = addresses, everywhere, chips

    def region_quotas(self, region: str) -> tuple[ComputeQuota, ...]:
        free = self._addresses if region == "us-east5" else 100
        return (ComputeQuota("IN_USE_ADDRESSES", free, 0, region),)

    def project_info(self) -> ProjectInfo:
        return ProjectInfo({}, (ComputeQuota("IN_USE_ADDRESSES", self._everywhere, 0),))

    def tpu_quotas(self, _api: Api) -> tuple[TpuQuota, ...]:
        return (TpuQuota("TPUV6EPreemptiblePerZone", "us-east5-a", self._chips, "v6e", preemptible=True),)


ROOM = {
    "all fit": ((NEAR, NEXT, FAR), Project(4, 6, 8), ""),
    "two of a region do not": (
        (NEAR, NEXT, FAR),
        Project(3, 9, 8),
        "2 places at once (us-east5-a, us-east5-b)",
    ),
    "one after the other they do": (
        tuple(replace(spec, race=False) for spec in (NEAR, NEXT)),
        Project(3, 9, 8),
        "",
    ),
    "all of them do not": ((NEAR, NEXT, FAR), Project(4, 5, 8), "3 places at once"),
    "a region without room for one is not counted": ((NEAR, NEXT, FAR), Project(1, 2, 8), ""),
    "two types of a zone do not": ((NEAR, LARGE), Project(9, 9, 16), "24 chips needed, 16 free"),
    "two types of a zone do": ((NEAR, LARGE), Project(9, 9, 24), ""),
}


@pytest.mark.parametrize(("places", "project", "refused"), ROOM.values(), ids=ROOM.keys())
def test_places_of_a_race_need_room_together(
    places: tuple[SliceSpec, ...], project: Project, refused: str
) -> None:
    memory = MemoryPlace()
    services = memory.machine()
    services.project_api = project
    try:
        if not refused:
            check_side_quotas(services, "big", [[place] for place in places])
            return
        with pytest.raises(QuotaError) as found:
            check_side_quotas(services, "big", [[place] for place in places])
        assert refused in found.value.message
        assert "leave out --race" in (found.value.hint or "")
    finally:
        memory.close()
