"""One way to prove and to delete, for every kind of thing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.disk_cases import COPY, DISK, ELSEWHERE, ZONE, copy, disks, make_disk, snapshots
from tests.support.memory.services import MemoryPlace
from tpuctl.inventory.delete import OWNED, delete_owned, find_owned
from tpuctl.inventory.ownership import Claim, Refusal, check_ownership
from tpuctl.model.cloud import STORE_LABEL, CloudResource, ResourceKind

ROOT = Path(__file__).resolve().parents[2] / "tpuctl"
DISK_OF_COPY = CloudResource(ResourceKind.DISK, COPY, ELSEWHERE)
SNAPSHOT = CloudResource(ResourceKind.SNAPSHOT, f"{COPY}-s", "global")


@pytest.mark.parametrize("wanted", [DISK_OF_COPY, SNAPSHOT], ids=["disk", "snapshot"])
def test_only_what_two_reads_prove_ours_is_deleted(wanted: CloudResource) -> None:
    place = MemoryPlace()
    services = place.machine("laptop")
    make_disk(services)
    copy(services, zone=ELSEWHERE)
    everything = disks(place), snapshots(place)
    found = find_owned(services, wanted)
    assert found is not None
    ours = Claim({STORE_LABEL: services.store.identity()}, user=None)
    refusals = {
        "label": delete_owned(services, found, Claim({STORE_LABEL: "another"}, None), lambda _: None),
        "life": delete_owned(services, replace(found, uid="1"), ours, lambda _: None),
        "caller": delete_owned(services, found, ours, lambda _: Refusal("it is used", "tpuctl disk ls")),
    }
    assert {key: each.refused is not None for key, each in refusals.items()} == dict.fromkeys(refusals, True)
    assert (disks(place), snapshots(place)) == everything
    refused = refusals["label"].refused
    assert refused is not None
    assert f"gcloud compute {wanted.kind}s delete {wanted.name}" in refused.hint
    assert delete_owned(services, found, ours, lambda _: None).compute is not None
    services.clock.sleep(300.0)
    assert wanted.name not in (*disks(place), *snapshots(place))
    assert find_owned(services, CloudResource(ResourceKind.DISK, DISK, ZONE)) is not None


@pytest.mark.parametrize("kind", OWNED)
def test_every_kind_is_told_by_its_labels_and_says_whose_it_is(kind: ResourceKind) -> None:
    found = CloudResource(kind, "x", ZONE, labels={STORE_LABEL: "another"})
    refused = check_ownership(found, found, Claim({STORE_LABEL: "ours"}, user=None))
    assert refused is not None
    assert "nobody's by its labels, of the fleet another" in refused.why
    assert check_ownership(found, found, Claim({STORE_LABEL: "another"}, user=None)) is None


def test_nothing_else_asks_for_a_deletion() -> None:
    call = re.compile(r"\.delete_(node|queued|disk|snapshot|bucket)\(")
    files = [each.relative_to(ROOT) for each in ROOT.rglob("*.py") if call.search(each.read_text())]
    outside = [str(each) for each in files if each.parts[0] not in ("cloud", "sim")]
    assert outside == ["inventory/delete.py"]
