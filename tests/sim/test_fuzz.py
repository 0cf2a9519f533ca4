"""Nonsense at every API of the simulator: it is refused, and nothing is stored that a later list fails on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.test_world import PARENT, build
from tests.support.fuzzing import Fuzzer, few_chips
from tests.support.sim import running_sim
from tests.support.soak import soak
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.sim.compute import operations as compute_operations
from tpuctl.sim.compute import state
from tpuctl.sim.compute.rest import ComputeApi
from tpuctl.sim.wire.messages import Request
from tpuctl.sim.world import operations
from tpuctl.sim.world.delays import Delays

ROUNDS, REQUESTS = 4, 400
KEPT, RESOURCES = 500, 600
"""Instead of thousands: each disk is compared with the quota of all."""


@pytest.fixture
def fuzzer(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fuzzer]:
    with running_sim(tmp_path, quotas=few_chips(load_accelerators())) as sim:
        made = Fuzzer(sim, request.param)
        yield made
        made.close()


@pytest.mark.parametrize("fuzzer", [1, soak(2)], indirect=True)
def test_no_request_breaks_a_door_or_a_later_list(fuzzer: Fuzzer) -> None:
    for _ in range(ROUNDS):
        fuzzer.run(REQUESTS)
        assert fuzzer.failures == []
        fuzzer.check_lists()
    assert {200, 400, 403, 404} <= set(fuzzer.answered)
    assert {"OK", "INVALID_ARGUMENT"} <= {each.status for each in fuzzer.sim.journal.entries()}


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_RESOURCES", RESOURCES)
    monkeypatch.setattr(operations, "KEPT", KEPT)
    monkeypatch.setattr(compute_operations, "KEPT", KEPT)
    sim = build(delays=Delays.instant())
    sim.create()
    change = {"node": {"name": f"{PARENT}/nodes/a", "description": "x"}, "updateMask": "description"}
    for _ in range(KEPT + 100):
        sim.call("UpdateNode", **change)
    assert len(sim.world.snapshot()["operations"]) <= KEPT
    assert sim.world.journal.count > KEPT
    api = ComputeApi(sim.world)
    disks = "/compute/v1/projects/sim-project/zones/us-central2-b/disks"
    statuses = Counter(
        api.handle(Request("POST", disks, {}, {}, f'{{"name": "d{number}", "sizeGb": "10"}}'.encode())).status
        for number in range(RESOURCES + 10)
    )
    assert statuses == {200: RESOURCES, 429: 10}
    listed, token = 0, ""
    while token is not None:
        query = {"pageToken": [token]}
        page = json.loads(api.handle(Request("GET", disks.replace("disks", "operations"), query, {})).body)
        listed, token = listed + len(page["items"]), page.get("nextPageToken")
    assert listed == KEPT
