"""Every way in which a TPU is deleted asks whose it is, right before: a label that changed keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import a_node
from tests.support.jobs import SPEC, bring_up, limit
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.disks.clone import create_master
from tpuctl.disks.hold import take_hold
from tpuctl.disks.make import get_record
from tpuctl.disks.rules import DiskRules
from tpuctl.disks.use import use_disk
from tpuctl.engine.events import Warn
from tpuctl.errors import ConflictError, DeniedError, TpuctlError
from tpuctl.inventory.reap import ReapResult, caller_of, reap, survey
from tpuctl.inventory.resources import Fate
from tpuctl.model.cloud import (
    INCARNATION_LABEL,
    OWNER_LABEL,
    STORE_LABEL,
    USER_LABEL,
    Api,
    CloudResource,
    Listing,
    NodeInfo,
    NodeState,
    ResourceKind,
    Tier,
)
from tpuctl.model.disks import DataDisk, DiskMode, DiskRequest
from tpuctl.model.records import Desired, SliceState
from tpuctl.model.shipped_files import load_accelerators, load_disk_rules
from tpuctl.model.verdict import Blocked
from tpuctl.money.coverage import keep_grant
from tpuctl.money.grants import AtEnd, Grant
from tpuctl.runs.take_down import end_slice, take_down
from tpuctl.slices.adopt import adopt, find_candidate
from tpuctl.slices.desired import request_slice
from tpuctl.slices.leaving import HostsLeft, Written
from tpuctl.slices.orphans import collect_obsolete, find_obsolete
from tpuctl.slices.reconcile import advance_slice
from tpuctl.slices.vacate import ask_hosts
from tpuctl.state.repository import SLICES, Versioned, get_slice, save
from tpuctl.views.decisions import decisions
from tpuctl.views.slices import describe_condition
from tpuctl.watch.heartbeat import PassLine
from tpuctl.watch.reconciler import run_pass

ZONE = SPEC.zone


def relabel(services: MemoryServices, name: str, **labels: str | None) -> None:
    """Somebody changes labels by hand; None takes one off."""
    node = services.cloud.find_node(ZONE, name)
    changed = {**node.labels, **{key.replace("_", "-"): value for key, value in labels.items()}}
    kept = {key: value for key, value in changed.items() if value is not None}
    services.cloud.update_node(ZONE, name, labels=kept)
    services.clock.sleep(60.0)


def standing(place: MemoryPlace) -> list[str]:
    return [each.path.id for each in place.world.census() if each.kind == "node"]


def minutes(place: MemoryPlace, count: int) -> list[str]:
    """Passes of the watchdog; what they could not do."""
    stuck = set()
    for _ in range(count):
        place.clock.advance(60.0)
        stuck |= {line.why for line in run_pass(place.machine()) if line.result in {"blocked", "failed"}}
    return sorted(stuck)


def by_down(services: MemoryServices) -> None:
    take_down(services, "big", wait=False)


def by_prune(services: MemoryServices) -> None:
    end_slice(services, "big", "apply --prune by me")


def by_ttl(services: MemoryServices) -> None:
    limit(services, "big", ttl_s=660.0)


def by_grants_end(services: MemoryServices) -> None:
    grant = Grant(ZONE, Tier.SPOT, "v4", 32, "2020-01-01", at_end=AtEnd.DOWN)
    keep_grant(services, grant)


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (by_down, "asked for by "),
        (by_prune, "apply --prune by me"),
        (by_ttl, "its time ends at "),
        (by_grants_end, "its grant ended on 2020-01-01"),
    ],
)
def test_what_became_somebody_elses_is_kept_by_every_way_down(
    place: MemoryPlace, services: MemoryServices, way: Callable[[MemoryServices], None], reason: str
) -> None:
    bring_up(services, "big", queued=False)
    relabel(services, "big-1", tpuctl_user="bob")
    way(services)
    stuck = minutes(place, 40)
    assert any("carries tpuctl-user=bob: it is bob's" in why for why in stuck), stuck
    assert standing(place) == ["big-1"]
    journal = [entry.data for entry in services.store.list("journal/slices/big/")]
    [down] = [entry["reason"] for entry in journal if entry["action"] == "down"]
    assert down.startswith(reason)
    assert [row["action"] for row in decisions(services, "big")].count("kept") == 1
    relabel(services, "big-1", tpuctl_user="ada")
    minutes(place, 20)
    assert standing(place) == []
    assert get_slice(services, "big").record.state is SliceState.GONE


def test_down_says_whose_it_is_and_goes_on_when_all_users_are_meant(place, services):
    bring_up(services, "big", queued=False)
    relabel(services, "big-1", tpuctl_user="bob")
    with pytest.raises(TpuctlError, match="it is bob's") as refused:
        take_down(services, "big")
    assert "tpuctl down big --all-users" in str(refused.value.hint)
    assert standing(place) == ["big-1"]
    take_down(services, "big", all_users=True)
    assert standing(place) == []


def test_a_preempted_node_that_became_somebody_elses_is_not_cleaned_away(place, services):
    bring_up(services, "big", queued=False)
    place.world.preempt("big-1")
    node = f"projects/{services.project}/locations/{ZONE}/nodes/big-1"
    # No patch of a preempted node: the label changed while it lived.
    place.world._kernel.nodes[node].data["labels"]["tpuctl-user"] = "bob"
    stuck = minutes(place, 10)
    assert any("it is bob's" in why for why in stuck), stuck
    assert standing(place) == ["big-1"]


def test_a_label_taken_off_keeps_it_and_adopt_puts_it_back(place, services):
    bring_up(services, "big", queued=False)
    relabel(services, "big-1", tpuctl_store=None)
    assert minutes(place, 3) == []
    with pytest.raises(TpuctlError, match="carries no label tpuctl-store") as refused:
        take_down(services, "big")
    assert "tpuctl adopt big-1 --zone us-central2-b" in str(refused.value.hint)
    found = find_candidate(services, "big-1", ZONE, None)
    adopt(services, load_accelerators(), found, login_user="tpuctl", add_key=False, pay=True)
    place.clock.advance(60.0)
    take_down(services, "big")
    assert standing(place) == []


def test_what_another_fleet_took_over_is_theirs_and_our_slice_is_gone(place, services):
    bring_up(services, "big", queued=False)
    relabel(services, "big-1", tpuctl_store="another")
    take_down(services, "big")
    assert get_slice(services, "big").record.state is SliceState.GONE
    assert standing(place) == ["big-1"]
    assert any("left alone" in event.text for event in services.events if isinstance(event, Warn))


def test_a_swap_between_two_reads_keeps_the_second(place, services):
    bring_up(services, "big", queued=False)
    take_down(services, "big", wait=False)
    real = services.cloud

    class Swapped:
        """After its first answer another node stands under the name."""

        reads = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def find_node(self, zone: str, name: str) -> Any:
            self.reads += 1
            node = real.find_node(zone, name)
            return node if self.reads == 1 else replace(node, uid="777")

    services.cloud = Swapped()
    outcome, _ = advance_slice(services, "big")
    assert isinstance(outcome.verdict, Blocked)
    assert "shows another" in outcome.verdict.why
    assert standing(place) == ["big-1"]


def made_by_hand(
    place: MemoryPlace, services: MemoryServices, name: str, labels: dict[str, str] | None = None
) -> None:
    body = {
        "acceleratorType": "v4-8",
        "runtimeVersion": SPEC.runtime_version,
        "labels": labels or {},
        "metadata": {"ssh-keys": f"tpuctl:{services.public_key}"},
    }
    parent = f"projects/{services.project}/locations/{ZONE}"
    place.world.call("CreateNode", {"parent": parent, "nodeId": name, "node": body})
    services.clock.sleep(600.0)


def taken_over(services: MemoryServices, name: str) -> None:
    found = find_candidate(services, name, ZONE, None)
    adopt(services, load_accelerators(), found, login_user="tpuctl", add_key=False, pay=True)


def test_an_adopted_node_with_the_number_of_an_earlier_life_is_kept_by_passes(place, services):
    for _ in range(3):
        bring_up(services, "big", queued=False)
        take_down(services, "big")
    made_by_hand(place, services, "big-2")
    taken_over(services, "big-2")
    minutes(place, 5)
    assert standing(place) == ["big-2"]
    assert get_slice(services, "big").record.state is SliceState.READY


def test_what_is_adopted_after_a_pass_read_the_records_is_kept_by_it(place, services):
    for _ in range(2):
        bring_up(services, "big", queued=False)
        labels = dict(
            services.cloud.find_node(ZONE, get_slice(services, "big").record.incarnation.cloud_name).labels
        )
        take_down(services, "big")
    made_by_hand(place, services, "big-1", {**labels, INCARNATION_LABEL: "1"})
    before = [*SLICES.load(services)[0].values()]
    taken_over(services, "big-1")
    listed = services.cloud.list_nodes().items, services.cloud.list_queued().items
    [end] = collect_obsolete(services, find_obsolete(*listed, before, services.store.identity()))
    assert (end.deleted, "wants it after all" in end.why) == (False, True)
    assert standing(place) == ["big-1"]


def left_over(place: MemoryPlace, services: MemoryServices, user: str) -> None:
    """A node of the first incarnation of `big`, whose slice is gone."""
    bring_up(services, "big", queued=False)
    labels = dict(services.cloud.find_node(ZONE, "big-1").labels)
    take_down(services, "big")
    made_by_hand(place, services, "big-1", {**labels, USER_LABEL: user})
    assert {OWNER_LABEL, INCARNATION_LABEL, STORE_LABEL} < set(labels)


def test_what_is_left_over_is_collected_only_from_its_own_user(place, services):
    bring_up(services, "other")
    left_over(place, services, "bob")
    stuck = minutes(place, 3)
    assert any("not deleted" in why and "it is bob's" in why for why in stuck), stuck
    assert "big-1" in standing(place)
    relabel(services, "big-1", tpuctl_user="ada")
    minutes(place, 3)
    assert standing(place) == ["other-1"]


def test_a_reap_looks_once_more_before_it_deletes(place, services):
    left_over(place, services, "ada")
    doomed = survey(services).of(Fate.DELETE)
    assert [each.found.name for each in doomed] == ["big-1"]
    place.clock.advance(600.0)
    relabel(services, "big-1", tpuctl_user="bob")
    caller = caller_of(services, all_users=False)
    [end] = reap(services, doomed, caller, deadline=services.clock.now() + 600)
    assert (end.result, "it is bob's" in end.why) == ("kept", True)
    assert standing(place) == ["big-1"]


def test_nobody_begins_a_new_life_over_what_is_left_of_another_persons_slice(place, services):
    bring_up(services, "big", queued=False)
    place.world.call("DeleteNode", {"name": f"projects/{services.project}/locations/{ZONE}/nodes/big-1"})
    minutes(place, 5)
    assert get_slice(services, "big").record.state is SliceState.REMOVED
    bob = place.machine("bobs")
    bob.user = "bob"
    spec = get_slice(services, "big").record.spec
    with pytest.raises(ConflictError, match="big is ada's and not yet gone") as refused:
        request_slice(bob, "big", spec, pay=False, admit=lambda: None)
    assert "--all-users" in str(refused.value.hint)
    take_down(services, "big")
    request_slice(bob, "big", spec, pay=False, admit=lambda: None)
    assert get_slice(services, "big").record.owner == "bob"


def test_a_slice_of_a_type_that_no_table_has_keeps_no_other_on_a_grant_that_is_over(place, services):
    bring_up(services, "big", queued=False)
    stored = get_slice(services, "big")
    strange = replace(stored.record, name="alien", spec=replace(stored.record.spec, accelerator_type="v99-8"))
    save(services, Versioned(strange, 0), strange)
    by_grants_end(services)
    minutes(place, 10)
    assert get_slice(services, "big").record.state is SliceState.GONE
    assert standing(place) == []


class Writable:
    """The cloud, whose nodes all list a disk that their hosts can write."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._disks = (DataDisk(ZONE, "data", DiskMode.READ_WRITE), DataDisk(ZONE, "c", DiskMode.READ_ONLY))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def find_node(self, zone: str, name: str) -> Any:
        node = self._real.find_node(zone, name)
        return None if node is None else replace(node, data_disks=self._disks)

    def list_nodes(self, *zones: str) -> Any:
        found = self._real.list_nodes(*zones)
        return replace(found, items=tuple(replace(node, data_disks=self._disks) for node in found.items))


def forgotten(services: MemoryServices) -> None:
    """The record of a slice is lost, and its TPU is not."""
    document = services.store.get("slices/big")
    assert document is not None
    services.store.delete(document.key, if_generation=document.generation)


class Adopted:
    """Compute Engine with one group, whose hosts have other labels than the marks of its template; `refuses`:
    it lists nothing."""

    def __init__(self, group: NodeInfo, template: NodeInfo, *, refuses: bool = False) -> None:
        self._there = [group, template]
        self._refuses = refuses

    def list_nodes(self, _zone: str) -> Listing[NodeInfo]:
        if self._refuses:
            raise DeniedError("Compute Engine API has not been used in project")
        return Listing(tuple(self._there[:1]))

    def find_node(self, _zone: str, _name: str) -> NodeInfo:
        return self._there[0]

    def delete_node(self, _zone: str, _name: str, _proved: CloudResource) -> None:
        self._there.pop(0)


def test_a_group_is_not_gone_while_its_template_stays_with_the_marks_of_another_fleet(place, services):
    mine = {
        OWNER_LABEL: "lost",
        INCARNATION_LABEL: "1",
        STORE_LABEL: services.store.identity(),
        USER_LABEL: "ada",
    }
    group = a_node(api=Api.COMPUTE, kind=ResourceKind.GROUP, labels=mine)
    marks = {**mine, STORE_LABEL: "another"}
    left = {"uid": "66", "state": NodeState.HALF_MADE, "kind": ResourceKind.TEMPLATE, "labels": marks}
    services.tpus = lambda api: compute if api is Api.COMPUTE else services.cloud
    compute = Adopted(group, replace(group, **left))
    doomed, caller = survey(services).of(Fate.DELETE), caller_of(services, all_users=False)
    [end] = reap(services, doomed, caller, deadline=services.clock.now() + 600)
    assert (end.result, "stays, for it is ada's, of the fleet another" in end.why) == (ReapResult.FAILED, True)
    compute = Adopted(group, group, refuses=True)
    assert survey(services).unread == ("TPUs of Compute Engine",)


@pytest.mark.parametrize("queued", [False, True], ids=["node", "queued"])
def test_what_can_write_a_disk_is_reaped_with_force_only(place, services, queued: bool) -> None:
    bring_up(services, "big", queued=queued)
    forgotten(services)
    services.cloud = Writable(services.cloud)
    [doomed] = survey(services).of(Fate.DELETE)
    assert "only with --force, for its hosts can write data" in doomed.why
    caller, deadline = caller_of(services, all_users=False), services.clock.now() + 1200
    [kept] = reap(services, [doomed], caller, deadline=deadline)
    assert (kept.result, kept.why) == (
        ReapResult.UNSAVED,
        "its hosts, which are not asked, can write data",
    )
    assert standing(place) == ["big-1"]
    [gone] = reap(services, [doomed], caller, deadline=deadline, may_lose=True)
    assert gone.result is ReapResult.GONE
    assert standing(place) == []
    assert [row["action"] for row in decisions(services, "big")][-2:] == ["unsaved", "reap"]


def left_behind(place: MemoryPlace, services: MemoryServices, queued: bool = False) -> None:
    """The first life of `big` is there although its record is at the second; its host can write a disk."""
    bring_up(services, "big", queued=queued)
    stored = get_slice(services, "big")
    life = replace(stored.record.incarnation, number=2, cloud_name="big-2")
    gone = replace(stored.record, incarnation=life, last_incarnation=2, state=SliceState.GONE)
    save(services, stored, replace(gone, desired=Desired.DOWN))
    services.cloud = Writable(services.cloud)


def a_pass(place: MemoryPlace, cloud: Any, **machine: Any) -> list[PassLine]:
    watchdog = place.machine(**machine)
    watchdog.cloud = cloud
    place.clock.advance(60.0)
    return run_pass(watchdog)


def test_a_pass_collects_what_can_write_a_disk_once_its_hosts_have_proved_that_nothing_is_lost(place, services):
    left_behind(place, services)
    lines = a_pass(place, services.cloud)
    assert [(line.subject, line.result) for line in lines] == [("big-1", "done")]
    a_pass(place, services.cloud)
    assert standing(place) == []
    assert [row["action"] for row in decisions(services, "big")][-1] == "collect"


def test_what_can_write_a_disk_and_is_silent_is_left_to_a_person_who_is_told_until_it_is_gone(place, services):
    left_behind(place, services)
    for _ in range(3):
        lines = a_pass(place, services.cloud, reaches=lambda _: False)
        assert [(line.subject, line.result) for line in lines] == [("big-1", "blocked")]
    assert (
        "not deleted: its hosts can write data: worker 0-1 does not answer; tpuctl reap --force" in lines[0].why
    )
    assert standing(place) == ["big-1"]
    told = [row["reason"] for row in decisions(services, "big") if row["action"] == "orphan"]
    assert len(told) == 1
    assert told[0].startswith("big-1 in us-central2-b stays and costs: its hosts can write data")
    assert "`tpuctl reap --force` deletes it" in describe_condition(services, "big")
    place.clock.advance(30 * 86_400.0)
    assert a_pass(place, services.cloud, reaches=lambda _: False)[0].result == "blocked"
    doomed, caller = survey(services).of(Fate.DELETE), caller_of(services, all_users=False)
    reap(services, doomed, caller, deadline=services.clock.now() + 1200, may_lose=True)
    a_pass(place, services.cloud)
    assert get_slice(services, "big").record.orphans == ()
    assert describe_condition(services, "big") == ""


class Hiding(Writable):
    """And which does not find a node now and then, although it is there."""

    hides = 0

    def find_node(self, zone: str, name: str) -> Any:
        if self.hides:
            self.hides -= 1
            return None
        return super().find_node(zone, name)


def test_a_node_that_is_not_found_once_is_no_proof_that_nothing_is_written(place, services):
    record = bring_up(services, "big", queued=False)
    services.cloud = Hiding(services.cloud)
    services.cloud.hides = 1
    left = ask_hosts(services, record, Written(("data",)), fence=0)
    assert (left.left, left.working) == (Written(("data",)), True)
    assert left.why == "node big-1 is not shown, and may be there"
    assert ask_hosts(services, record, Written(("data",)), fence=0) == HostsLeft()


def test_a_node_that_two_reads_call_gone_is_asked_for_nothing(place, services):
    record = bring_up(services, "big", queued=False)
    place.world.call("DeleteNode", {"name": f"projects/{services.project}/locations/{ZONE}/nodes/big-1"})
    place.clock.advance(600.0)
    assert ask_hosts(services, record, Written(("data",)), fence=0) == HostsLeft()


def test_a_master_whose_writer_is_not_found_once_is_not_copied_without_a_hold(place, services):
    rules = DiskRules(load_disk_rules())
    create_master(services, rules, DiskRequest("data", ZONE, "pd-balanced", 10, {}), "data")
    bring_up(services, "dev", queued=False, accelerator_type="v4-8", hosts=1, chips=4)
    use_disk(services, rules, "data", to="dev", rw=True, path="", mounted=True, dry_run=False)
    master = get_record(services, "data")
    services.cloud = Hiding(services.cloud)
    services.cloud.hides = 1
    with pytest.raises(TpuctlError, match="disk data is used by dev-1"):
        take_hold(services, master, master, unmount=False, deadline=None)
