"""Machines that come later to a shared store: their keys reach hosts that live already, and go with them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.jobs import bring_up, submit
from tests.support.memory.host import make_host_key
from tests.support.memory.process import scripted
from tests.support.memory.remote import MemoryRemote
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.engine.events import Warn
from tpuctl.errors import DeniedError, NotFoundError, TpuctlError, TransientError
from tpuctl.model.hosts import FailureKind
from tpuctl.model.records import RunState, SliceState
from tpuctl.runs.follow import follow_run, start_run
from tpuctl.runs.request import request_stop
from tpuctl.slices.enrollment import KEYS, KEYS_PER_PASS, enroll_machine, list_machines, remove_machine
from tpuctl.slices.probing import probe_workers
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import get_run, get_slice, save
from tpuctl.views.decisions import decisions
from tpuctl.watch.heartbeat import PassLine
from tpuctl.watch.reconciler import run_pass
from tpuctl.workers.exec import execute

ZONE = "us-central2-b"


@pytest.fixture
def place(place: MemoryPlace) -> MemoryPlace:
    place.hosts.programs["main.py"] = scripted(24 * 3600.0)
    return place


def passes(place: MemoryPlace, services: MemoryServices, minutes: int) -> list[PassLine]:
    lines: list[PassLine] = []
    for _ in range(minutes):
        place.clock.advance(60.0)
        lines = run_pass(services)
    return lines


def key_lines(services: MemoryServices, name: str = "big-1") -> list[str]:
    node = services.cloud.find_node(ZONE, name)
    return sorted(node.metadata[KEYS].splitlines())


def patches(place: MemoryPlace) -> int:
    return sum(entry.method == "nodes.patch" for entry in place.world.journal.entries())


def lets_in(services: MemoryServices) -> bool:
    return probe_workers(services, get_slice(services, "big").record).all_well


def test_a_machine_that_comes_later_is_let_in_by_its_own_passes(place):
    laptop = place.machine("laptop")
    bring_up(laptop, "big")
    run = submit(laptop, "big", "for a day")
    passes(place, laptop, 5)
    office = place.machine("office")
    assert not lets_in(office)
    passes(place, office, 5)
    assert lets_in(office)
    assert lets_in(laptop)
    assert patches(place) == 1
    (line,) = passes(place, office, 1)
    assert (line.subject, line.result) == (run.id, "waiting")
    record = get_run(office, run.id).record
    assert (record.state, record.attempt.number) == (RunState.RUNNING, 1)
    assert "keys" in [row["action"] for row in decisions(office, "big")]


def test_a_machine_that_was_removed_is_shut_out_and_does_not_come_back_by_itself(place):
    laptop, office = place.machine("laptop"), place.machine("office")
    bring_up(laptop, "big")
    passes(place, office, 5)
    assert len(key_lines(laptop)) == 2
    assert remove_machine(laptop, "office")
    assert not remove_machine(laptop, "office")
    passes(place, laptop, 15)
    assert key_lines(laptop) == [f"tpuctl:{laptop.public_key}"]
    passes(place, office, 30)
    assert not lets_in(place.machine("office", process=2))
    assert [(row["machine"], row["enrolled"]) for row in list_machines(laptop)] == [
        ("laptop", True),
        ("office", False),
    ]
    with pytest.raises(NotFoundError, match="no machine elsewhere"):
        remove_machine(laptop, "elsewhere")


def test_what_else_is_in_the_metadata_stays_as_it_is(place):
    laptop, office = place.machine("laptop"), place.machine("office")
    bring_up(laptop, "big")
    node = laptop.cloud.find_node(ZONE, "big-1")
    theirs = "ada:ssh-rsa AAAAB3Nza ada@desk"
    metadata = {**node.metadata, KEYS: f"{theirs}\n{node.metadata[KEYS]}", "note": "mine"}
    laptop.cloud.update_node(ZONE, "big-1", labels=node.labels, metadata=metadata)
    passes(place, office, 5)
    after = laptop.cloud.find_node(ZONE, "big-1")
    assert theirs in key_lines(laptop)
    assert len(key_lines(laptop)) == 3
    assert after.metadata["note"] == "mine"
    assert after.labels == node.labels


def test_all_nodes_of_a_multislice_get_the_keys(place):
    laptop, office = place.machine("laptop"), place.machine("office")
    bring_up(laptop, "big", slices=2, hosts=4, chips=16)
    passes(place, office, 5)
    names = [node.name for node in laptop.cloud.list_nodes().items]
    assert [len(key_lines(laptop, name)) for name in names] == [2, 2]
    assert lets_in(office)


def test_a_large_fleet_gets_the_keys_in_several_passes(place):
    laptop, office = place.machine("laptop"), place.machine("office")
    for number in range(KEYS_PER_PASS + 2):
        bring_up(laptop, f"s{number}")
    later = [line for line in passes(place, office, 1) if line.subject == "keys"]
    assert [(line.result, line.why) for line in later] == [("later", "2 slices more: later passes send them")]
    assert patches(place) == KEYS_PER_PASS
    assert "keys" not in [line.subject for line in passes(place, office, 1)]
    assert patches(place) == KEYS_PER_PASS + 2


def test_one_pass_takes_the_key_of_a_removed_machine_from_a_large_fleet(place):
    laptop, office = place.machine("laptop"), place.machine("office")
    for number in range(KEYS_PER_PASS + 2):
        bring_up(laptop, f"s{number}")
    passes(place, office, 2)
    enroll_machine(place.machine("attic"))
    remove_machine(laptop, "office")
    before = patches(place)
    passes(place, laptop, 1)
    assert patches(place) == before + KEYS_PER_PASS + 2
    passes(place, laptop, 1)  # the cloud takes a moment to carry it out
    keys = [line for number in range(KEYS_PER_PASS + 2) for line in key_lines(laptop, f"s{number}-1")]
    assert len({*keys}) == 2
    assert not any(office.public_key in line for line in keys)


@pytest.fixture
def many(place: MemoryPlace) -> list[str]:
    """One more slice than a pass gives keys to."""
    names = [f"s{number:02}" for number in range(KEYS_PER_PASS + 1)]
    for name in names:
        bring_up(place.machine("laptop"), name)
    return names


def test_slices_whose_nodes_somebody_made_anew_keep_no_other_from_its_keys(place, many):
    laptop, office = place.machine("laptop"), place.machine("office")
    for name in many[:-1]:
        stored = get_slice(laptop, name)
        theirs = replace(stored.record.incarnation, node_uid="of another node")
        save(laptop, stored, replace(stored.record, incarnation=theirs))
    passes(place, office, 2)
    assert patches(place) == 1
    assert len(key_lines(laptop, f"{many[-1]}-1")) == 2


def test_slices_at_which_others_are_at_work_do_not_keep_the_last_one_from_its_keys_for_ever(place, many):
    laptop, office, other = place.machine("laptop"), place.machine("office"), place.machine("other")
    for _ in range(5):
        with ExitStack() as leases:
            for name in many[:-1]:
                leases.enter_context(take_lease(other, name))
            passes(place, office, 1)
    assert len(key_lines(laptop, f"{many[-1]}-1")) == 2


def test_a_key_that_a_machine_only_changed_goes_from_a_large_fleet_in_several_passes(place, many):
    laptop, office = place.machine("laptop"), place.machine("office")
    passes(place, office, 3)
    before = patches(place)
    old = renew_key(place, office)
    passes(place, office, 1)
    assert patches(place) == before + KEYS_PER_PASS
    passes(place, office, 3)
    assert not any(old.split()[1] in line for name in many for line in key_lines(laptop, f"{name}-1"))


@pytest.mark.parametrize("machine", ["attic", "office"])
def test_a_damaged_machine_takes_no_key_away_and_ends_no_pass(place, machine):
    laptop, office = place.machine("laptop"), place.machine("office")
    bring_up(laptop, "big")
    run = submit(laptop, "big", "for a day")
    stored = office.store.get(f"machines/{machine}")
    generation = 0 if stored is None else stored.generation
    office.store.put(f"machines/{machine}", {"public_key": 7}, if_generation=generation)
    lines = passes(place, office, 1)
    failed = [line for line in lines if line.subject == "keys"]
    assert {line.result for line in failed} == {"failed"}
    assert f"machines/{machine}" in failed[0].why
    assert run.id in [line.subject for line in lines]
    assert key_lines(laptop) == [f"tpuctl:{laptop.public_key}"]


def test_passes_over_hosts_that_know_every_machine_change_nothing(place):
    laptop, office = place.machine("laptop"), place.machine("office")
    bring_up(laptop, "big")
    passes(place, office, 10)
    before = patches(place)
    for _ in range(30):
        passes(place, office, 1)
        passes(place, laptop, 1)
    assert patches(place) == before == 1


def test_a_machine_that_was_removed_does_not_come_back_by_making_a_slice_anew(place):
    laptop, office = place.machine("laptop"), place.machine("office")
    bring_up(laptop, "big")
    passes(place, office, 5)
    remove_machine(laptop, "office")
    passes(place, laptop, 15)
    place.world.preempt("big-1")
    passes(place, office, 15)
    assert key_lines(laptop, "big-2") == [f"tpuctl:{laptop.public_key}"]
    assert not lets_in(office)
    passes(place, laptop, 15)
    assert get_slice(laptop, "big").record.state is SliceState.READY


def test_a_key_is_taken_away_whatever_its_comment_was_when_it_was_sent(place):
    laptop, office = place.machine("laptop"), place.machine("office")
    bring_up(laptop, "big")
    passes(place, office, 5)
    office.public_key = f"{office.public_key.rpartition(' ')[0]} renamed"
    enroll_machine(office)
    remove_machine(laptop, "office")
    passes(place, laptop, 15)
    assert key_lines(laptop) == [f"tpuctl:{laptop.public_key}"]


def test_a_key_that_another_machine_has_too_stays_for_that_one(place):
    laptop, office = place.machine("laptop"), place.machine("office")
    bare = laptop.public_key.rpartition(" ")[0]
    office.public_key = f"{bare} the same key"
    bring_up(laptop, "big")
    passes(place, office, 5)
    remove_machine(laptop, "office")
    passes(place, laptop, 15)
    assert len(key_lines(laptop)) == 1
    assert key_lines(laptop)[0].startswith(f"tpuctl:{bare}")
    assert lets_in(laptop)


def renew_key(place: MemoryPlace, services: MemoryServices) -> str:
    """This machine has another key from now on; returns the one that it had."""
    old = services.public_key
    services.public_key = f"{make_host_key(4711)} {services.machine}"
    services.remote = MemoryRemote(place.hosts, services.public_key)
    return old


def test_a_machine_that_changes_its_key_leaves_no_old_one_on_live_hosts(place):
    laptop, office = place.machine("laptop"), place.machine("office")
    bring_up(laptop, "big")
    passes(place, office, 5)
    old = renew_key(place, office)
    passes(place, office, 15)
    assert key_lines(laptop) == sorted(f"tpuctl:{each.public_key}" for each in (laptop, office))
    assert lets_in(office)
    assert not any(old.split()[1] in line for line in key_lines(laptop))
    assert [row["machine"] for row in list_machines(laptop)] == ["laptop", "office"]
    before = patches(place)
    passes(place, laptop, 15)
    passes(place, office, 15)
    assert patches(place) == before


def test_a_machine_that_takes_its_old_key_up_again_keeps_it(place):
    laptop, office = place.machine("laptop"), place.machine("office")
    bring_up(laptop, "big")
    passes(place, office, 5)
    old = renew_key(place, office)
    passes(place, office, 15)
    office.public_key, office.remote = old, MemoryRemote(place.hosts, old)
    passes(place, office, 15)
    assert key_lines(laptop) == sorted(f"tpuctl:{each.public_key}" for each in (laptop, office))
    assert lets_in(office)


def test_a_machine_that_was_removed_does_not_come_back_with_another_key(place):
    laptop, office = place.machine("laptop"), place.machine("office")
    bring_up(laptop, "big")
    passes(place, office, 5)
    remove_machine(laptop, "office")
    renew_key(place, office)
    passes(place, office, 30)
    assert key_lines(laptop) == [f"tpuctl:{laptop.public_key}"]
    assert not lets_in(office)


def test_a_run_from_a_machine_that_hosts_do_not_know_yet_lets_it_in_and_charges_nothing(place):
    bring_up(place.machine("laptop"), "big")
    office = place.machine("office")
    run = start_run(office, submit(office, "big", "for a day").id)
    assert (run.state, run.preemptions, run.failures) == (RunState.RUNNING, 0, 0)
    assert run.attempt is not None
    assert run.attempt.number == 1
    assert patches(place) == 1


def test_a_run_is_stopped_from_a_machine_that_hosts_do_not_know_yet(place):
    laptop, office = place.machine("laptop"), place.machine("office")
    bring_up(laptop, "big")
    run = start_run(laptop, submit(laptop, "big", "for a day").id)
    request_stop(office, run.id)
    assert follow_run(office, run.id).state is RunState.STOPPED
    assert not any(running(host) for host in place.hosts.all())


def running(host) -> bool:
    return bool(host.running())


def test_a_run_from_a_machine_that_was_removed_is_refused_with_the_way_back_and_charges_nothing(place):
    laptop, office = place.machine("laptop"), place.machine("office")
    bring_up(laptop, "big")
    passes(place, office, 5)
    remove_machine(laptop, "office")
    passes(place, laptop, 3)
    office = place.machine("office", process=2)
    run = submit(office, "big", "for a day")
    with pytest.raises(TpuctlError, match="taken out of those that may log in") as refused:
        start_run(office, run.id)
    assert refused.value.hint == "tpuctl up big lets it in again"
    record = get_run(office, run.id).record
    assert (record.preemptions, record.failures, record.state.final) == (0, 0, False)
    bring_up(office, "big")
    assert start_run(office, run.id).state is RunState.RUNNING


def test_up_and_exec_from_a_machine_that_hosts_do_not_know_yet_send_its_key(place):
    bring_up(place.machine("laptop"), "big")
    office = place.machine("office")
    refused = execute(office, get_slice(office, "big").record, ["true"])
    assert {result.failure for result in refused} == {FailureKind.AUTH}
    told = [event.text for event in office.events if isinstance(event, Warn)]
    assert "the same command again in a minute" in told[-1]
    place.clock.advance(60.0)
    again = execute(office, get_slice(office, "big").record, ["true"])
    assert [result.exit_status for result in again] == [0, 0]
    attic = place.machine("attic")
    bring_up(attic, "big")
    place.clock.advance(60.0)
    assert lets_in(attic)


def test_what_other_hosts_answered_stands_while_another_process_is_at_work_on_the_slice(place):
    laptop = place.machine("laptop")
    bring_up(laptop, "big")
    office = place.machine("office")
    with take_lease(laptop, "big"):
        refused = execute(office, get_slice(office, "big").record, ["true"])
        assert [result.failure for result in refused] == [FailureKind.AUTH] * 2
        assert bring_up(office, "big").state is SliceState.READY
    assert patches(place) == 0
    assert execute(office, get_slice(office, "big").record, ["true"])[0].failure is FailureKind.AUTH
    assert patches(place) == 1


class Refusing:
    """A cloud whose nodes this caller may not change now."""

    def __init__(self, inner: Any, error: type[TpuctlError]) -> None:
        self._inner = inner
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def update_node(self, *_: Any, **__: Any) -> None:
        raise self._error("not now")


@pytest.mark.parametrize("error", [DeniedError, TransientError])
def test_what_other_hosts_answered_stands_when_the_cloud_takes_no_key(place, error):
    bring_up(place.machine("laptop"), "big")
    office = place.machine("office")
    office.cloud = Refusing(office.cloud, error)
    refused = execute(office, get_slice(office, "big").record, ["true"])
    assert [result.failure for result in refused] == [FailureKind.AUTH] * 2
    told = [event.text for event in office.events if isinstance(event, Warn)]
    assert "this machine's key could not be sent" in told[-1]
