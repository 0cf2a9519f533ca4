"""Hooks over a store in memory: what a crash while something is written down does to what they are told."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.builders import a_run, a_slice, an_attempt
from tests.support.crashing import Crash, CrashPoint, make_crashing
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.config.hooks import Hook, parse_hooks
from tpuctl.model.attempts import GIVEN_UP, GOES_ON, MOUNT_LOST, STALLED, TimelineEntry
from tpuctl.model.records import RunRecord, RunState
from tpuctl.notify.deliver import HOOKS, deliver_events, hook_cursor
from tpuctl.notify.events import HookEvent
from tpuctl.runs.context import RunContext
from tpuctl.runs.effects import apply_plan
from tpuctl.runs.plan import plan_event
from tpuctl.runs.states import News, RunEvent, RunFinding
from tpuctl.state.journal import NEW_RUN, record_decision
from tpuctl.state.repository import RUNS, SLICES, get_run
from tpuctl.views.decisions import decisions

PAGER = parse_hooks(
    [{"name": "pager", "events": ["mount-lost", "needs-human", "gave-up"], "command": ["true"]}], "test"
)[0]
MOUNTS = RunFinding(
    RunEvent.MOUNTS_CHANGED, "two died", news=(News(MOUNT_LOST, "/a died"), News(MOUNT_LOST, "/b died"))
)
STALL = RunFinding(RunEvent.STALLED, "no output", news=(News(STALLED, "no output"),))
WELL = RunFinding(RunEvent.GOES_ON, "goes on", news=(News(GOES_ON, "goes on"),))
DIED = [("00001-00001", "/a died"), ("00001-00002", "/b died")]


def listen(services: MemoryServices) -> list[tuple[str, str]]:
    """What one pass tells."""
    heard: list[tuple[str, str]] = []

    def send(_: Hook, event: HookEvent) -> str:
        heard.append((event.id, event.detail))
        return ""

    deliver_events(services, [PAGER], [], [], send)
    return heard


def begin(services: MemoryServices, *more: TimelineEntry) -> RunRecord:
    """A run that goes on, and a hook that is not new."""
    listen(services)
    timeline = (TimelineEntry(1.0, "started"), *more)
    run = a_run(attempt=an_attempt(timeline=timeline), created_at=services.store.now())
    RUNS.put(services, run.id, run, 0)
    return run


def find(services: MemoryServices, found: RunFinding) -> None:
    """A step of the run that finds this, as far as it writes something."""
    stored = get_run(services, "r1")
    apply_plan(RunContext(services, stored, None, [], 1, 0.0), plan_event(stored.record, found))


def events_in_journal(services: MemoryServices) -> list[str]:
    return [row["reason"] for row in decisions(services, "r1") if row["event"]]


def crash_while_finding(place: MemoryPlace, finding: RunFinding, at: int = 2, *, after: bool = False) -> None:
    crashing = place.machine(process=2)
    make_crashing(crashing, CrashPoint(at, after=after))
    with pytest.raises(Crash):
        find(crashing, finding)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_crash_between_journal_and_record_neither_loses_nor_doubles(
    place: MemoryPlace, services: MemoryServices, at: int, after: bool
) -> None:
    begin(services)
    crash_while_finding(place, MOUNTS, at, after=after)
    heard = listen(services)
    if len(get_run(services, "r1").record.attempt.timeline) == 1:
        find(services, MOUNTS)  # the record does not know yet: the next step finds it again
    assert [*heard, *listen(services)] == DIED
    assert events_in_journal(services) == ["/a died", "/b died"]
    assert [each.detail for each in get_run(services, "r1").record.attempt.timeline] == [
        "",
        "/a died",
        "/b died",
    ]


def test_a_mount_is_not_taken_for_another_that_died_before_a_crash(
    place: MemoryPlace, services: MemoryServices
) -> None:
    """The first is well again when the next step looks."""
    begin(services)
    crash_while_finding(place, MOUNTS)
    find(services, replace(MOUNTS, news=MOUNTS.news[1:]))
    assert listen(services) == DIED


def test_what_was_seen_before_a_crash_is_told_beside_what_is_seen_after_it(
    place: MemoryPlace, services: MemoryServices
) -> None:
    begin(services)
    crash_while_finding(place, STALL)
    find(services, MOUNTS)
    stalled, *rest = listen(services)
    assert stalled == ("00001-00001", "no output")
    assert rest == [("00001-00002", "/a died"), ("00001-00003", "/b died")]
    find(services, WELL)
    assert listen(services) == []
    assert [each.event for each in get_run(services, "r1").record.attempt.timeline[1:]] == [
        STALLED,
        MOUNT_LOST,
        MOUNT_LOST,
        GOES_ON,
    ]


def test_what_was_told_is_not_told_again_when_a_damaged_record_is_brought_back(
    services: MemoryServices,
) -> None:
    begin(services)
    find(services, MOUNTS)
    assert listen(services) == DIED
    whole = services.store.get("runs/r1")
    damaged = services.store.put("runs/r1", {"id": "r1"}, if_generation=whole.generation)
    assert listen(services) == []
    services.store.put("runs/r1", whole.data, if_generation=damaged.generation)
    assert listen(services) == []
    find(services, RunFinding(RunEvent.MOUNTS_CHANGED, "one more", news=(News(MOUNT_LOST, "/c died"),)))
    assert listen(services) == [("00001-00003", "/c died")]


def test_an_upgrade_under_a_run_neither_repeats_nor_loses(services: MemoryServices) -> None:
    """An earlier version has told the first of two events, and wrote none of them into the journal."""
    old = [TimelineEntry(2.0, MOUNT_LOST, "/a died"), TimelineEntry(3.0, STALLED, "no output")]
    begin(services, *old)
    cursor = hook_cursor(services, PAGER)
    told = {"runs/r1": {"generation": 0, "last": "00001-00001"}}
    data = {"read": told, "troubled": {}, "tries": 0, "error": ""}
    services.store.put(HOOKS.key("pager"), data, if_generation=HOOKS.generation(services, "pager"))
    assert cursor.read == {}
    find(services, RunFinding(RunEvent.MOUNTS_CHANGED, "died", news=(News(MOUNT_LOST, "/b died"),)))
    assert listen(services) == [("00001-00002", "no output"), ("00001-00003", "/b died")]
    stored = get_run(services, "r1")
    ended = replace(stored.record, state=RunState.GAVE_UP, reason="100 preemptions", ended_at=9.0)
    RUNS.put(services, "r1", replace(ended, ended_at=services.store.now()), stored.generation)
    assert listen(services) == [("gave-up", "gave-up: 100 preemptions")]


def test_a_hook_whose_cursor_is_damaged_begins_anew_and_keeps_no_other_from_being_told(
    services: MemoryServices,
) -> None:
    begin(services)
    find(services, MOUNTS)
    assert listen(services) == DIED
    generation = HOOKS.generation(services, "pager")
    services.store.put(HOOKS.key("pager"), {"read": "\0\0"}, if_generation=generation)
    assert "begins anew" in hook_cursor(services, PAGER).error
    heard: list[str] = []

    def send(hook: Hook, event: HookEvent) -> str:
        heard.append(f"{hook.name} {event.detail}")
        return ""

    other = replace(PAGER, name="other")
    assert [f"{note:.12}" for note in deliver_events(services, [PAGER, other], [], [], send)] == [
        "hook pager: "
    ]
    find(services, STALL)
    assert deliver_events(services, [PAGER, other], [], [], send) == []
    assert sorted(heard) == ["other no output", "pager no output"]


def test_a_damaged_entry_of_a_journal_keeps_nobody_from_being_told(services: MemoryServices) -> None:
    begin(services)
    for entry in ({"at": 1.0}, {"at": 1.0, "action": "stalled", "event": "00001-00001"}):
        services.store.append("journal/runs/r1/", entry)
    find(services, MOUNTS)
    assert listen(services) == DIED
    record = a_slice()
    SLICES.put(services, record.name, record, 0)
    for entry in ({"at": 1.0, "reason": "because"}, {"at": 2.0, "action": "refused", "reason": "no"}):
        services.store.append(f"journal/{record.key}/", entry)
    assert [detail for _, detail in listen(services)] == ["refused: no"]


def test_a_run_is_told_nothing_of_an_earlier_one_of_its_name(services: MemoryServices) -> None:
    """As after `tpuctl store forget`: of runs that are pruned the journal goes first."""
    begin(services)
    find(services, MOUNTS)
    stored = get_run(services, "r1")
    record_decision(services, "runs/r1", "failed", "worker 0 exited with 1", event=GIVEN_UP)
    RUNS.delete(services, "r1", stored.generation)
    record_decision(services, "runs/r1", NEW_RUN, "asked for by me")
    begin(services)
    assert listen(services) == []
    find(services, STALL)
    assert listen(services) == [("00001-00001", "no output")]
    assert [each.event for each in get_run(services, "r1").record.attempt.timeline] == ["started", STALLED]
