"""Hosts that let nobody in at first, or never: OS Login, late accounts, guest attributes turned off."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.inventory.test_census import ZONE, make_node
from tests.support.jobs import bring_up
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.engine.events import Waiting, Warn
from tpuctl.errors import DeniedError, TpuctlError
from tpuctl.model import timeouts
from tpuctl.model.records import SliceState
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.slices.adopt import adopt, find_candidate
from tpuctl.slices.observe import find_slice_node
from tpuctl.slices.probing import find_workers
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.state.repository import get_slice
from tpuctl.watch.reconciler import run_pass
from tpuctl.workers.exec import execute


def metadata(services: MemoryServices, name: str) -> dict[str, str]:
    node = services.cloud.find_node(ZONE, name)
    assert node is not None
    return dict(node.metadata)


def waits(services: MemoryServices) -> list[str]:
    return [event.why for event in services.events if isinstance(event, Waiting)]


# ------------------------------------------------------------ OS Login


@pytest.mark.parametrize("queued", [True, False])
@pytest.mark.parametrize("boot_disk_gib", [None, 200])
def test_os_login_of_the_project_is_turned_off_on_every_node_that_is_made(
    place, services, queued, boot_disk_gib
):
    place.world.set_metadata({"enable-oslogin": "TRUE"})
    record = bring_up(services, "big", queued=queued, boot_disk_gib=boot_disk_gib)
    assert record.state is SliceState.READY
    assert metadata(services, "big-1")["enable-oslogin"] == "FALSE"
    assert all(result.ok for result in execute(services, record, ["true"]))


def test_os_login_that_a_policy_forces_ends_the_wait_with_its_cause_and_what_mends_it(place):
    place.world.faults.add({"preset": "os-login-policy"})
    services = place.machine("laptop")
    with pytest.raises(TpuctlError, match=r"compute\.requireOsLogin") as told:
        bring_up(services, "big")
    ready_at = get_slice(services, "big").record.incarnation.cloud_ready_at
    assert 0 <= services.clock.now() - ready_at - timeouts.KEY_SHOWS_S < 60.0
    assert "refused the key of user tpuctl" in told.value.message
    assert "org-policies disable-enforce compute.requireOsLogin --project=sim-project" in str(told.value.hint)
    assert [line.result for line in run_pass(services)] == ["blocked"]
    place.world.faults.clear()
    place.world.follow_os_login()
    assert wait_for_slice(services, "big").state is SliceState.READY


def test_os_login_on_a_node_that_was_made_by_hand_is_turned_off_by_adopting_it_with_the_key(place, services):
    place.world.set_metadata({"enable-oslogin": "TRUE"})
    make_node(place, "hand", {})
    with pytest.raises(DeniedError, match="cannot log in"):
        adopt_it(services, add_key=False)
    assert adopt_it(services, add_key=True) is SliceState.READY
    assert metadata(services, "hand")["enable-oslogin"] == "FALSE"


# ------------------------------------------------------------ accounts that come late


def test_the_first_refusals_of_a_young_host_are_waited_out(place):
    place.world.faults.add({"preset": "late-keys"})
    services = place.machine("laptop")
    record = bring_up(services, "big")
    assert record.state is SliceState.READY
    assert any("hosts that take this machine's key" in why for why in waits(services))
    assert not any(isinstance(event, Warn) for event in services.events)
    assert not any(entry.method == "nodes.patch" for entry in place.world.journal.entries())


def adopt_it(services: MemoryServices, *, add_key: bool) -> SliceState:
    found = find_candidate(services, "hand", None, None)
    adopt(services, load_accelerators(), found, login_user="tpuctl", add_key=add_key, pay=True)
    return wait_for_slice(services, "hand", deadline=services.clock.now() + 3600).state


def make_by_hand(place: MemoryPlace) -> MemoryServices:
    parent = f"projects/sim-project/locations/{ZONE}"
    node = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    place.world.call("CreateNode", {"parent": parent, "nodeId": "hand", "node": node})
    place.clock.advance(600.0)
    return place.machine("laptop")


def test_adopting_with_the_key_waits_for_the_key_and_never_hints_at_itself(place):
    services = make_by_hand(place)
    assert adopt_it(services, add_key=True) is SliceState.READY
    assert any("hosts that take this machine's key" in why for why in waits(services))


def test_adopting_with_the_key_ends_with_the_cause_where_the_key_never_works(place):
    place.world.faults.add({"preset": "os-login-policy"})
    services = make_by_hand(place)
    with pytest.raises(TpuctlError, match=r"compute\.requireOsLogin") as told:
        adopt_it(services, add_key=True)
    assert "adopt" not in str(told.value.hint)


# ------------------------------------------------------------ guest attributes


@pytest.mark.parametrize("preset", ["guest-attributes-refused", "guest-attributes-absent"])
def test_guest_attributes_that_are_refused_count_as_none_and_first_use_is_reached(place, preset):
    place.world.faults.add({"preset": preset})
    services = place.machine("laptop")
    with pytest.raises(TpuctlError, match="shows no host keys of 2 workers after 10 min") as told:
        bring_up(services, "big")
    assert "first-use" in str(told.value.hint)
    services.trust_first_use = True
    record = wait_for_slice(services, "big", deadline=services.clock.now() + 3600)
    assert record.state is SliceState.READY
    [warning] = [event.text for event in services.events if isinstance(event, Warn)]
    assert "unproven" in warning


@pytest.mark.parametrize("code", [3, 5, 7, 9])
def test_no_refusal_of_guest_attributes_keeps_a_slice_from_coming_up_with_first_use(place, services, code):
    place.world.faults.add({"preset": "guest-attributes-refused", "code": code})
    services.trust_first_use = True
    assert bring_up(services, "big").state is SliceState.READY


def test_addresses_of_a_node_that_is_gone_are_never_asked_for_keys(place):
    services = place.machine("laptop")
    record = bring_up(services, "big", queued=False)
    node = find_slice_node(services, record)
    services.cloud.delete_node(node.zone, node.name)
    while services.cloud.find_node(node.zone, node.name):
        place.clock.advance(10.0)
    services.trust_first_use = True
    services.remote = NoRemote()
    unpinned = replace(record, incarnation=replace(record.incarnation, workers=()))
    assert find_workers(services, unpinned, node) == "a second read: the node was there a moment ago"


class NoRemote:
    """Whoever asks hosts anything fails."""


def test_guest_attributes_that_come_late_are_waited_for(place):
    place.world.faults.add({"preset": "guest-attributes-late"})
    services = place.machine("laptop")
    assert bring_up(services, "big").state is SliceState.READY
    assert "host keys of 2 workers" in waits(services)


def test_credentials_that_are_refused_are_not_taken_for_missing_host_keys(place, services):
    place.world.faults.add(
        {"preset": "guest-attributes-refused", "code": 16, "message": "Request had invalid credentials."}
    )
    services.trust_first_use = True
    with pytest.raises(DeniedError):
        bring_up(services, "big")
