"""What happens to a run between a look and the lease, and what a machine knows of its own way to hosts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.crashing import Sleep, make_crashing
from tests.support.jobs import bring_up, submit
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.model.records import SliceState
from tpuctl.model.timeouts import LEASE_TTL_S
from tpuctl.model.verdict import Wait
from tpuctl.runs.follow import start_run
from tpuctl.runs.reconcile import advance_run
from tpuctl.slices.probing import PartitionCheck
from tpuctl.state.repository import active_runs, get_run, get_slice, save


@pytest.fixture
def place(place: MemoryPlace) -> MemoryPlace:
    place.hosts.programs["main.py"] = scripted(3600.0)
    return place


class Meddling:
    """A store in which another machine writes something just before a lease is taken, once."""

    def __init__(self, inner: Any, meddle: Any) -> None:
        self._inner = inner
        self._meddle = meddle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put(self, key: str, data: Any, **how: Any) -> Any:
        if key.startswith("leases/") and self._meddle is not None:
            meddle, self._meddle = self._meddle, None
            meddle()
        return self._inner.put(key, data, **how)


def mark_lost(services: MemoryServices, name: str) -> None:
    stored = get_slice(services, name)
    save(services, stored, replace(stored.record, state=SliceState.LOST))


def test_no_attempt_begins_on_a_slice_that_was_lost_a_moment_ago(place):
    laptop, other = place.machine(), place.machine("other")
    bring_up(laptop, "big")
    run = submit(laptop, "big", "as registered")
    laptop.store = Meddling(laptop.store, lambda: mark_lost(other, "big"))
    outcome = advance_run(laptop, run.id)
    assert isinstance(outcome.verdict, Wait)
    assert outcome.verdict.why == "another read"
    assert get_run(laptop, run.id).record.attempt is None


def test_no_worker_is_started_for_an_attempt_whose_slice_was_lost_a_moment_ago(place):
    laptop, other = place.machine(), place.machine("other")
    bring_up(laptop, "big")
    run = submit(laptop, "big", "as registered")
    advance_run(place.machine("cut", reaches=lambda _host: False), run.id)  # begins it, and prepares nothing
    laptop.store = Meddling(laptop.store, lambda: mark_lost(other, "big"))
    advance_run(laptop, run.id)
    attempt = get_run(laptop, run.id).record.attempt
    assert attempt is not None
    assert attempt.hosts == ()


def test_a_machine_that_saw_one_slice_still_asks_others_before_it_takes_itself_for_cut_off(place):
    laptop = place.machine()
    bring_up(laptop, "big")
    bring_up(laptop, "small")
    partition = PartitionCheck(laptop)
    partition.saw("big")
    assert partition.another("big")
    assert not partition.cut_off


def test_a_machine_that_nobody_answers_is_cut_off_and_asks_only_once(place):
    laptop = place.machine()
    bring_up(laptop, "big")
    start_run(laptop, submit(laptop, "big", "as registered").id)
    asked = []
    cut = place.machine("cut", reaches=lambda host: bool(asked.append(host)))
    partition = PartitionCheck(cut)
    assert not partition.another("small")
    assert not partition.another("other")
    assert partition.cut_off
    assert len(asked) == 1


def choose_late(place: MemoryPlace, at: int, *, after: bool) -> bool:
    """Whether a machine slept beyond its lease before or after its `at`-th change, while it asked for a chip;
    another machine asked for one meanwhile."""
    slept: list[str] = []

    def meanwhile() -> None:
        place.clock.advance(LEASE_TTL_S + 1.0)
        slept.append(submit(place.machine("server"), "big", "other", chips="1").id)

    laptop = place.machine(process=2)
    make_crashing(laptop, Sleep(at, meanwhile, after=after))
    submit(laptop, "big", "as registered", chips="1")
    return bool(slept)


@pytest.mark.parametrize("after", [False, True])
def test_two_machines_that_choose_at_once_choose_different_chips(after: bool) -> None:
    for at in itertools.count(1):
        place = MemoryPlace(shared_ids=True)
        try:
            bring_up(place.machine(), "big", accelerator_type="v4-8", hosts=1, chips=4)
            slept = choose_late(place, at, after=after)
            if not slept:
                assert at > 3
                return
            chosen = sorted(run.chips for run in active_runs(place.machine(), "big"))
            assert chosen == [(0,), (1,)], f"change {at}"
        finally:
            place.close()
