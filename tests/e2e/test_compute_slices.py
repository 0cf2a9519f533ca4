"""Slices of Compute Engine, from `up` to nothing left: in memory, with the real adapter."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.compute_slices import KINDS, OF_A_GROUP, SPECS, ZONE, objects, objects_of, preempt
from tests.support.disk_cases import RULES
from tests.support.memory.buckets import mount_bucket
from tests.support.memory.services import MemoryPlace, MemoryServices
from tests.support.stories import HOUR, begin_run, long_program, passes, state_of
from tpuctl.disks.clone import CloneRequest, clone, create_master
from tpuctl.disks.use import use_disk
from tpuctl.engine.events import Note, Warn
from tpuctl.errors import DeniedError, InvalidRequestError, PendingError, QuotaError, TpuctlError
from tpuctl.fleet.apply import apply_fleet
from tpuctl.fleet.load import observe_and_plan
from tpuctl.fleet.plan import WantedFleet
from tpuctl.inventory.reap import ReapResult, caller_of, reap, survey
from tpuctl.inventory.resources import Fate
from tpuctl.model.cloud import Tier
from tpuctl.model.disks import DataDisk, DiskMode, DiskRequest
from tpuctl.model.records import LifetimeLimits, RunState, SliceState
from tpuctl.model.refs import MountRef
from tpuctl.model.requests import ApplyRequest
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.runs.take_down import take_down
from tpuctl.slices.adopt import adopt, find_candidate
from tpuctl.slices.desired import request_slice
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.slices.resolve import WantedSlice
from tpuctl.slices.states import LossKind
from tpuctl.state.repository import get_slice, list_runs, save
from tpuctl.views.decisions import decisions
from tpuctl.views.slices import fleet_rows, slice_status
from tpuctl.watch.reconciler import run_pass


@pytest.fixture
def place() -> Iterator[MemoryPlace]:
    made = MemoryPlace()
    yield made
    made.close()


def bring_up(services: MemoryServices, kind: str, name: str = "big") -> None:
    request_slice(services, name, SPECS[kind], pay=True, admit=lambda: None)
    wait_for_slice(services, name, deadline=services.clock.now() + HOUR)


@pytest.mark.parametrize(("kind", "action"), list(itertools.product(SPECS, ("STOP", "DELETE"))))
def test_a_slice_comes_up_is_preempted_comes_back_with_its_run_and_goes(
    place: MemoryPlace, kind: str, action: str
) -> None:
    services, hosts = place.machine(), SPECS[kind].hosts
    long_program(place)
    bring_up(services, kind)
    begin_run(services)
    assert objects(place) == objects_of("big-1", hosts)
    preempt(place, "big-1", action)
    for _ in range(20):
        passes(services, 1)
        if objects(place) == objects_of("big-2", hosts) and state_of(place, "big") is SliceState.READY:
            break
    passes(services, 3)
    [run] = list_runs(services)
    assert run.attempt is not None
    assert (run.state, run.preemptions, run.failures, run.attempt.number) == (RunState.RUNNING, 1, 0, 2)
    loss = get_slice(services, "big").record.loss
    assert loss is not None
    assert loss.kind == "preempted"
    take_down(services, "big", deadline=services.clock.now() + HOUR)
    assert (state_of(place, "big"), objects(place)) == (SliceState.GONE, {})


@pytest.mark.parametrize("kind", SPECS)
def test_hosts_that_vanish_when_their_time_is_over_were_not_taken_away(place: MemoryPlace, kind: str) -> None:
    services = place.machine()
    limited = replace(SPECS[kind], tier=Tier.FLEX_START, run_duration_s=2 * HOUR)
    request_slice(services, "big", limited, pay=True, admit=lambda: None)
    wait_for_slice(services, "big", deadline=services.clock.now() + HOUR)
    shown = slice_status(services, "big")["ends_in_cloud"]
    assert 0 < datetime.fromisoformat(shown).timestamp() - services.clock.now() <= 2 * HOUR
    place.clock.advance(2 * HOUR)
    passes(services, 10)
    said = [(each["action"], each["reason"]) for each in decisions(services, "big")]
    assert LossKind.TIME_OVER in dict(said)
    assert said[-1] == ("removed", "its --run-duration of 2h is over")
    assert (state_of(place, "big"), objects(place)) == (SliceState.REMOVED, {})


def test_another_ttl_of_a_fleet_file_says_that_hosts_end_as_compute_engine_was_told(place: MemoryPlace) -> None:
    services = place.machine()

    def apply(ttl_s: float) -> None:
        item = WantedSlice("big", (SPECS["instance"],), pay=True, limits=LifetimeLimits(ttl_s=ttl_s))
        wanted = WantedFleet("lab", (item,), ())
        changes = observe_and_plan(services, wanted, ApplyRequest())
        apply_fleet(services, wanted, {}, changes, deadline=services.clock.now() + HOUR)

    apply(4 * HOUR)
    ends = slice_status(services, "big")["ends_in_cloud"]
    apply(8 * HOUR)
    [said] = [each.text for each in services.events if isinstance(each, Note) and "still ends" in each.text]
    assert "`tpuctl status big` says when" in said
    after = slice_status(services, "big")
    assert after["ends_in_cloud"] == ends < after["ends"]


def test_an_instance_that_somebody_deleted_stays_removed(place: MemoryPlace) -> None:
    services = place.machine()
    bring_up(services, "instance")
    services.compute_tpus.delete_node(ZONE, "big-1")
    passes(services, 5)
    assert (state_of(place, "big"), objects(place)) == (SliceState.REMOVED, {})
    last = decisions(services, "big")[-1]
    assert (last["action"], last["reason"]) == ("removed", "big-1 is gone: somebody deleted it")


def test_the_copy_of_a_disk_is_on_each_host_again_after_a_preemption_and_both_outlive_their_slices(
    place: MemoryPlace,
) -> None:
    services = place.machine()
    bring_up(services, "instance", "dev")
    bring_up(services, "group")
    create_master(services, RULES, DiskRequest("data", ZONE, "hyperdisk-balanced", 10, {}), "data")
    use_disk(services, RULES, "data", to="dev", rw=True, path="", mounted=True, dry_run=False)
    clone(services, RULES, CloneRequest("data", to="big"))
    preempt(place, "big-1", "STOP")
    passes(services, 10)
    shown = {node.name: node.data_disks for node in services.compute_tpus.list_nodes().items}
    assert shown == {
        "big-2": (DataDisk(ZONE, "data-g1", DiskMode.READ_ONLY),),
        "dev-1": (DataDisk(ZONE, "data", DiskMode.READ_WRITE),),
    }
    for name in ("big", "dev"):
        take_down(services, name, deadline=services.clock.now() + HOUR)
    assert objects(place) == {"disks": ["data", "data-g1"]}
    assert (place.hosts.disks.torn, place.hosts.disks.held()) == ([], [])


def test_the_host_that_runs_on_brings_its_bucket_home_before_the_slice_goes(place: MemoryPlace) -> None:
    services = place.machine()
    bring_up(services, "group")
    stored = get_slice(services, "big")
    spec = replace(stored.record.spec, mounts=(MountRef("b", "/mnt/b", "train"),))
    save(services, stored, replace(stored.record, spec=spec))
    [other] = [each for each in place.hosts.all() if each.hostname == "big-1-w-002"]
    mount_bucket(other, {"path": "/mnt/b", "bucket": "b", "digest": "", "version": "", "keeper": ""})
    preempt(place, "big-1", "STOP")
    take_down(services, "big", deadline=services.clock.now() + HOUR)
    told = [event.text for event in services.events if isinstance(event, Note)]
    assert "its hosts bring what was written to mount /mnt/b" in told
    assert [event.text for event in services.events if isinstance(event, Warn)] == []  # nothing was lost
    assert objects(place) == {}


def test_workers_are_in_the_order_of_their_numbers_and_not_of_their_names(place: MemoryPlace) -> None:
    services = place.machine()
    bring_up(services, "group")
    life = get_slice(services, "big").record.incarnation
    assert life is not None
    for number, worker in enumerate(life.workers):
        host = place.hosts.find(worker.endpoint.internal_ip)
        assert host is not None
        assert host.metadata()["instance/attributes/agent-worker-number"] == str(number)
        assert host.hostname == worker.endpoint.instance


def test_two_hosts_with_one_number_are_named_and_the_slice_is_not_ready(place: MemoryPlace) -> None:
    services = place.machine()
    request_slice(services, "big", SPECS["group"], pay=True, admit=lambda: None)
    while len(place.hosts.all()) < 2:
        services.clock.sleep(2.0)
        run_pass(services)
    for host in place.hosts.all():
        told = dict(host.metadata())
        host.metadata = lambda told=told: {**told, "instance/attributes/agent-worker-number": "0"}
    both = "big-1-w-001 and big-1-w-002 both say that they are worker 0"
    with pytest.raises(TpuctlError, match=both) as error:
        wait_for_slice(services, "big", deadline=services.clock.now() + HOUR)
    assert error.value.hint == "tpuctl down big, then up again"
    take_down(services, "big", deadline=services.clock.now() + HOUR)
    assert objects(place) == {}


@pytest.mark.parametrize("kind", SPECS)
def test_what_no_record_knows_is_reaped_object_by_object(place: MemoryPlace, kind: str) -> None:
    services = place.machine()
    bring_up(services, kind)
    [document] = [each for each in services.store.list("slices/") if each.key == "slices/big"]
    services.store.delete("slices/big", if_generation=document.generation)
    doomed = survey(services).of(Fate.DELETE)
    assert [(each.found.name, str(each.found.kind)) for each in doomed] == [("big-1", kind)]
    deadline = services.clock.now() + HOUR
    [result] = reap(services, doomed, caller_of(services, all_users=False), deadline=deadline)
    assert (result.result, objects(place)) == (ReapResult.GONE, {})


NO_IMAGE = {"runtime_version": "no-such-image"}, "no-such-image'. The referenced image resource cannot be found"


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("group", *NO_IMAGE),
        ("instance", *NO_IMAGE),
        (
            "group",
            {"topology": "3x3x3"},
            "topology 3x3x3 is not supported for machine type tpu7x-standard-4t",
        ),
    ],
)
def test_what_can_never_be_is_refused_by_name_and_nothing_is_left(
    place: MemoryPlace, kind: str, change: dict[str, str], said: str
) -> None:
    services = place.machine()
    request_slice(services, "big", replace(SPECS[kind], **change), pay=True, admit=lambda: None)
    with pytest.raises(TpuctlError, match=re.escape(said)):
        wait_for_slice(services, "big", deadline=services.clock.now() + HOUR)
    passes(services, 5)
    assert (state_of(place, "big"), objects(place)) == (SliceState.REFUSED, {})


@pytest.mark.parametrize(
    ("tier", "pool", "place_of_pool"),
    [
        (Tier.SPOT, "PREEMPTIBLE_TPU_TPU7X", ZONE),
        (Tier.ON_DEMAND, "TPUS_PER_TPU_FAMILY", "us-central1/TPU7X"),
    ],
)
@pytest.mark.parametrize("kind", SPECS)
def test_the_pool_that_is_used_up_is_named_and_nothing_goes_on_asking(
    place: MemoryPlace, kind: str, tier: Tier, pool: str, place_of_pool: str
) -> None:
    services = place.machine()
    place.world.set_quotas({f"{pool}/{place_of_pool}": 3})
    request_slice(services, "big", replace(SPECS[kind], tier=tier), pay=True, admit=lambda: None)
    with pytest.raises(QuotaError, match=pool) as refused:
        wait_for_slice(services, "big", deadline=services.clock.now() + HOUR)
    assert refused.value.hint == "the slice stays wanted; tpuctl down big gives it up"
    take_down(services, "big", deadline=services.clock.now() + HOUR)
    assert objects(place) == {}


@pytest.mark.parametrize(
    "taken", ["resourcePolicies", "instanceTemplates", "instanceGroupManagers", "instances"]
)
def test_a_name_that_somebody_else_took_is_said_and_what_has_it_is_left_alone(
    place: MemoryPlace, taken: str
) -> None:
    services = place.machine()
    kind = "instance" if taken == "instances" else "group"
    take_name(services, taken, "big-1")
    theirs = objects(place)
    request_slice(services, "big", SPECS[kind], pay=True, admit=lambda: None)
    wait_for_slice(services, "big", deadline=services.clock.now() + HOUR)
    said = [str(row["reason"]) for row in decisions(services, "big")]
    assert "big-1 exists but carries no label tpuctl-slice=big; asking again as big-2" in said
    ours = objects_of("big-2", SPECS[kind].hosts)
    assert objects(place) == {
        each: sorted([*theirs.get(each, ()), *ours.get(each, ())]) for each in KINDS if each in theirs | ours
    }
    take_down(services, "big", deadline=services.clock.now() + HOUR)
    assert objects(place) == theirs


def test_a_policy_that_another_group_uses_is_named_and_goes_once_it_is_free(place: MemoryPlace) -> None:
    services = place.machine()
    bring_up(services, "group")
    made_by_hand(services, policy="big-1")
    said = "policy big-1 in us-central1-c: .* is already being used by '.*/instanceGroupManagers/my-group'"
    with pytest.raises(PendingError, match=said):
        take_down(services, "big", deadline=services.clock.now() + 900.0)
    assert objects(place)["instanceGroupManagers"] == ["my-group"]
    group = f"/compute/v1/projects/{services.project}/zones/{ZONE}/instanceGroupManagers/my-group"
    services.compute_tpus.rest.change("DELETE", group, "group")
    passes(services, 10)
    assert (state_of(place, "big"), objects(place)) == (SliceState.GONE, {"instanceTemplates": ["my-template"]})


def test_a_group_without_capacity_waits_has_no_host_and_says_why(place: MemoryPlace) -> None:
    services = place.machine()
    place.world.set_capacity(ZONE, 0)
    request_slice(services, "big", SPECS["group"], pay=True, admit=lambda: None)
    with pytest.raises(PendingError, match="does not have enough resources available to fulfill the request"):
        wait_for_slice(services, "big", deadline=services.clock.now() + 900.0)
    assert objects(place) == {kind: ["big-1"] for kind in OF_A_GROUP}
    place.world.set_capacity(ZONE, 8)
    wait_for_slice(services, "big", deadline=services.clock.now() + HOUR)
    assert objects(place) == objects_of("big-1", 2)


def test_an_instance_without_capacity_is_asked_for_again_and_says_why(place: MemoryPlace) -> None:
    services = place.machine()
    place.world.set_capacity(ZONE, 0)
    request_slice(services, "big", SPECS["instance"], pay=True, admit=lambda: None)
    with pytest.raises(PendingError, match="does not have enough resources available to fulfill the request"):
        wait_for_slice(services, "big", deadline=services.clock.now() + 900.0)
    assert objects(place) == {}
    place.world.set_capacity(ZONE, 4)
    wait_for_slice(services, "big", deadline=services.clock.now() + HOUR)
    life = get_slice(services, "big").record.incarnation
    assert life is not None
    assert objects(place) == objects_of(life.cloud_name, 1)


def test_one_host_in_bulk_is_refused_and_a_group_of_one_that_is_there_can_be_adopted(
    place: MemoryPlace,
) -> None:
    """A slice of one host is asked for as an instance: no request of ours meets that refusal."""
    services = place.machine()
    make_template(services)
    with pytest.raises(InvalidRequestError, match="must be INDIVIDUAL for a group of one instance"):
        make_group(services, targetSize=1)
    assert objects(place) == {"instanceTemplates": ["my-template"]}
    make_group(services, targetSize=1, targetSizePolicy={"mode": "INDIVIDUAL"})
    found = find_candidate(services, "my-group", ZONE, "big")
    adopt(services, load_accelerators(), found, login_user="tpuctl", add_key=True, pay=True)
    wait_for_slice(services, "big", deadline=services.clock.now() + HOUR)
    assert (get_slice(services, "big").record.spec.hosts, len(place.hosts.all())) == (1, 1)
    take_down(services, "big", deadline=services.clock.now() + HOUR)
    assert objects(place) == {"instanceTemplates": ["my-template"]}


def test_a_policy_without_a_group_is_found_and_collected(place: MemoryPlace) -> None:
    services = place.machine()
    place.world.faults.add({"kind": "error", "method": "instanceTemplates.insert", "code": 3, "message": "no"})
    request_slice(services, "big", SPECS["group"], pay=True, admit=lambda: None)
    with pytest.raises(TpuctlError):
        wait_for_slice(services, "big", deadline=services.clock.now() + HOUR)
    passes(services, 5)
    assert (state_of(place, "big"), objects(place)) == (SliceState.REFUSED, {})


def test_a_project_without_compute_engine_lists_its_tpus_with_a_warning(place: MemoryPlace) -> None:
    services = place.machine()
    bring_up(services, "instance")
    fault = {
        "kind": "error",
        "method": "instances.aggregatedList",
        "code": 7,
        "message": "not enabled",
        "times": 0,
    }
    place.world.faults.add(fault)
    services.events.clear()
    [row] = fleet_rows(services)[0]
    assert (row["name"], row["state"], row["cloud"]) == ("big", "ready", "unread")
    [warning] = [event.text for event in services.events if isinstance(event, Warn)]
    assert "TPUs of Compute Engine could not be listed" in warning


def test_a_group_that_was_made_by_hand_becomes_a_slice_and_its_template_stays(place: MemoryPlace) -> None:
    """As docs.cloud.google.com/compute/docs/tpus/create-tpu-mig-multi-host-slice has it: names of their own."""
    services = place.machine()
    made_by_hand(services)
    found = find_candidate(services, "my-group", ZONE, "big")
    assert "group my-group in us-central1-c" in found.evidence
    with pytest.raises(DeniedError):
        adopt(services, load_accelerators(), found, login_user="tpuctl", add_key=False, pay=True)
    adopt(services, load_accelerators(), found, login_user="tpuctl", add_key=True, pay=True)
    wait_for_slice(services, "big", deadline=services.clock.now() + HOUR)
    spec = get_slice(services, "big").record.spec
    assert spec == replace(SPECS["group"], boot_disk_gib=spec.boot_disk_gib, metadata=spec.metadata)
    take_down(services, "big", deadline=services.clock.now() + HOUR)
    assert objects(place) == {"resourcePolicies": ["my-policy"], "instanceTemplates": ["my-template"]}
    stays = [event.text for event in services.events if isinstance(event, Note) and " stays, " in event.text]
    assert [text.partition(": ")[2].partition(" --project")[0] for text in stays] == [
        "gcloud compute instance-templates delete my-template --region us-central1",
        "gcloud compute resource-policies delete my-policy --region us-central1",
    ]


def make_policy(services: MemoryServices, name: str) -> None:
    policy = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "2x2x2"}
    url = f"/compute/v1/projects/{services.project}/regions/us-central1/resourcePolicies"
    services.compute_tpus.rest.change("POST", url, "policy", {"name": name, "workloadPolicy": policy})


def take_name(services: MemoryServices, kind: str, name: str) -> None:
    """Somebody else makes an object of that name."""
    if kind == "resourcePolicies":
        make_policy(services, name)
    elif kind == "instances":
        spec = replace(SPECS["instance"], labels={"team": "other"})
        services.compute_tpus.create_node(name, spec)
        services.clock.sleep(300.0)
    elif kind == "instanceTemplates":
        make_template(services, name)
    else:
        make_template(services)
        make_group(services, name=name, targetSize=1, targetSizePolicy={"mode": "INDIVIDUAL"})


def made_by_hand(services: MemoryServices, policy: str = "") -> None:
    """With a policy of its own, or another one's."""
    if not policy:
        policy = "my-policy"
        make_policy(services, policy)
    make_template(services)
    made = f"projects/{services.project}/regions/us-central1/resourcePolicies/{policy}"
    make_group(services, resourcePolicies={"workloadPolicy": made})


def make_template(services: MemoryServices, name: str = "my-template") -> None:
    family = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2404-amd64-tpu-tpu7x"
    properties = {
        "machineType": "tpu7x-standard-4t",
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": family,
                    "diskSizeGb": 100,
                    "diskType": "hyperdisk-balanced",
                },
            }
        ],
        "networkInterfaces": [
            {"network": "global/networks/default", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}
        ],
        "serviceAccounts": [{"email": "default", "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}],
        "scheduling": {"onHostMaintenance": "TERMINATE", "provisioningModel": "SPOT"},
        "metadata": {"items": [{"key": "enable-guest-attributes", "value": "TRUE"}]},
    }
    template = {"name": name, "properties": properties}
    region = f"/compute/v1/projects/{services.project}/regions/us-central1"
    services.compute_tpus.rest.change("POST", f"{region}/instanceTemplates", "template", template)
    services.clock.sleep(30.0)


def make_group(services: MemoryServices, **fields: Any) -> None:
    """Of two hosts in BULK mode, where nothing else is said, by the template that is there."""
    place = f"projects/{services.project}"
    group = {
        "name": "my-group",
        "baseInstanceName": "my-group",
        "instanceTemplate": f"{place}/regions/us-central1/instanceTemplates/my-template",
        "targetSize": 2,
        "targetSizePolicy": {"mode": "BULK"},
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
        **fields,
    }
    groups = f"/compute/v1/{place}/zones/{ZONE}/instanceGroupManagers"
    services.compute_tpus.rest.change("POST", groups, "make a group", group)
    for _ in range(30):
        services.clock.sleep(10.0)
