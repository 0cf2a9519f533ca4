"""Slices whose time the user limited: cleaned away when it is over, and not asked for again by themselves."""

from __future__ import annotations

from tests.support.builders import a_spec
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.model.cloud import Tier
from tpuctl.model.records import SliceState
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.model.verdict import Blocked
from tpuctl.slices.desired import request_slice
from tpuctl.slices.reconcile import advance_slice, wait_for_slice
from tpuctl.state.repository import get_slice

FLEXIBLE = a_spec(
    accelerator_type="v6e-1",
    zone="us-east5-a",
    tier=Tier.FLEX_START,
    runtime_version="v2-alpha-tpuv6e",
    hosts=1,
    chips=1,
    run_duration_s=3600.0,
)


def ask(services: MemoryServices, spec: SliceSpec) -> None:
    request_slice(services, "big", spec, pay=True, admit=lambda: None)


def advance_until_blocked(place: MemoryPlace, services: MemoryServices) -> Blocked:
    for _ in range(40):
        outcome, _ = advance_slice(services, "big")
        if isinstance(outcome.verdict, Blocked):
            return outcome.verdict
        services.clock.sleep(300)
    raise AssertionError("the slice was never given up")


def creates(place: MemoryPlace) -> int:
    return sum(entry.method == "queuedResources.create" for entry in place.world.journal.entries())


def test_flex_start_ends_once_and_is_asked_for_again_by_a_person_only(
    place: MemoryPlace, services: MemoryServices
) -> None:
    ask(services, FLEXIBLE)
    wait_for_slice(services, "big")
    services.clock.sleep(3500)
    place.world.preempt("big-1")
    verdict = advance_until_blocked(place, services)
    assert "--run-duration of 1h is over" in verdict.why
    assert get_slice(services, "big").record.state is SliceState.REMOVED
    assert not services.cloud.list_queued().items
    assert creates(place) == 1
    ask(services, FLEXIBLE)
    record = wait_for_slice(services, "big")
    assert record.incarnation is not None
    assert record.incarnation.cloud_name == "big-2"


def test_flex_start_that_is_lost_early_comes_back(place: MemoryPlace, services: MemoryServices) -> None:
    ask(services, FLEXIBLE)
    wait_for_slice(services, "big")
    place.world.preempt("big-1")
    wait_for_slice(services, "big")
    assert creates(place) == 2


def test_a_request_that_expired_is_collected_and_waits_for_a_person(
    place: MemoryPlace, services: MemoryServices
) -> None:
    # The API lists the type in this zone although there is no capacity for it, ever.
    spec = a_spec(
        accelerator_type="v5p-8",
        zone="us-east1-d",
        runtime_version="v2-alpha-tpuv5",
        hosts=1,
        chips=4,
        valid_for_s=600.0,
    )
    ask(services, spec)
    verdict = advance_until_blocked(place, services)
    assert "no capacity came within --valid-for 10m" in verdict.why
    assert not services.cloud.list_queued().items
    assert creates(place) == 1
