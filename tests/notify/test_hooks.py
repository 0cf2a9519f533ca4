"""Hooks hear of what passes and commands did: as a rule once, never less, with crashes and two machines."""

from __future__ import annotations

import pytest

from tests.support.crashing import Crash, CrashPoint, make_crashing
from tests.support.jobs import bring_up, pass_until, run_to_end
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.config.hooks import EventKind, Hook, parse_hooks
from tpuctl.model.records import SliceState
from tpuctl.model.timeouts import HOOK_TRIES, HOOKS_MAX_S
from tpuctl.notify.deliver import HOOKS, deliver_events, hook_cursor
from tpuctl.notify.events import HookEvent
from tpuctl.state.repository import get_slice
from tpuctl.watch.heartbeat import PassLine, Trouble

ALL = ["preempted", "recovered", "gave-up", "needs-human"]


def hook(name: str, *events: str) -> Hook:
    return parse_hooks([{"name": name, "events": list(events) or ALL, "command": ["true"]}], "test")[0]


def told(event: HookEvent) -> str:
    """The subject, and the event or, of a trouble, its id: positions in a journal differ from test to test."""
    said = event.id if "/" in event.id else event.kind
    return f"{event.subject}/{said}"


class Listener:
    """What one program was told; answers with `trouble`."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.ids: list[tuple[str, str]] = []
        self.trouble = ""

    def __call__(self, _hook: Hook, event: HookEvent) -> str:
        self.heard.append(told(event))
        self.ids.append((event.subject, event.id))
        return self.trouble

    def listen(self, services: MemoryServices, *hooks: Hook, troubles: tuple[Trouble, ...] = ()) -> list[str]:
        """What is told in one pass."""
        before = len(self.heard)
        lines = [PassLine(each.subject, each.result, each.why, False) for each in troubles]
        deliver_events(services, hooks, lines, troubles, self)
        return self.heard[before:]


def lose_and_recover(place: MemoryPlace, services: MemoryServices, name: str, number: int = 1) -> None:
    """One preemption, and passes until the slice is ready again."""
    place.world.preempt(f"{name}-{number}")
    pass_until(services, lambda: get_slice(services, name).record.last_incarnation == number + 1)
    pass_until(services, lambda: get_slice(services, name).record.state is SliceState.READY)


LIFE = ["slices/NAME/preempted", "slices/NAME/recovered"]


def life(name: str) -> list[str]:
    return [token.replace("NAME", name) for token in LIFE]


def test_a_preemption_and_its_end_are_told_once(place, services) -> None:
    pager, listener = hook("pager"), Listener()
    bring_up(services, "one")
    assert listener.listen(services, pager) == []
    lose_and_recover(place, services, "one")
    assert listener.listen(services, pager) == life("one")
    generation = HOOKS.generation(services, pager.name)
    assert listener.listen(services, pager) == []
    assert HOOKS.generation(services, pager.name) == generation


def test_a_new_hook_is_not_told_of_the_past_and_a_wider_one_neither(place, services) -> None:
    listener, narrow = Listener(), hook("narrow", "gave-up")
    bring_up(services, "past")
    listener.listen(services, narrow)
    lose_and_recover(place, services, "past")
    assert listener.listen(services, hook("late")) == []
    assert listener.listen(services, narrow) == []
    assert listener.listen(services, hook("narrow")) == []
    lose_and_recover(place, services, "past", 2)
    assert listener.listen(services, hook("narrow")) == life("past")


def test_what_an_earlier_version_kept_of_a_hook_is_not_told_again(place, services) -> None:
    pager, listener = hook("pager"), Listener()
    bring_up(services, "old")
    lose_and_recover(place, services, "old")
    generation = services.store.get("slices/old").generation
    ledger = {"seen": {"slices/old": {"generation": generation, "told": ["1/preempted"]}}, "troubled": {}}
    services.store.put(HOOKS.key(pager.name), {**ledger, "holder": "", "expires": 0.0}, if_generation=0)
    assert listener.listen(services, pager) == []
    lose_and_recover(place, services, "old", 2)
    assert listener.listen(services, pager) == life("old")


def test_a_run_that_gave_up_is_told(place, services) -> None:
    place.hosts.programs["main.py"] = scripted(exit_status=1)
    pager, listener = hook("pager"), Listener()
    listener.listen(services, pager)
    bring_up(services, "worn")
    run = run_to_end(services, "worn", "raise SystemExit(1)")
    assert listener.listen(services, pager) == [f"runs/{run.id}/gave-up"]


def test_two_machines_with_the_same_hook_tell_once_and_with_different_hooks_both(place, services) -> None:
    shared, own = hook("shared"), hook("own")
    first, second = Listener(), Listener()
    bring_up(services, "two")
    first.listen(services, shared, own)
    lose_and_recover(place, services, "two")
    other = place.machine("another")

    def meanwhile(each: Hook, event: HookEvent) -> str:
        # While this machine sends, the other one makes its pass.
        assert second.listen(other, shared) == []
        return first(each, event)

    deliver_events(services, [shared], [], [], meanwhile)
    assert first.heard == life("two")
    assert second.listen(other, shared, own) == life("two")
    assert first.listen(services, shared, own) == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_while_telling_repeats_at_most_the_one_that_was_being_told(place, after) -> None:
    points = [1, 2, 3, 4]
    hooks = {k: hook(f"crash-{k}") for k in points}
    name = f"crash-{'a' if after else 'b'}"
    services = place.machine()
    bring_up(services, name)
    Listener().listen(services, *hooks.values())
    lose_and_recover(place, services, name)
    for k in points:
        listener = Listener()
        killed = place.machine()
        make_crashing(killed, CrashPoint(k, after=after))
        with pytest.raises(Crash):
            listener.listen(killed, hooks[k])
        services = place.machine(process=2)
        listener.listen(services, hooks[k])
        assert listener.listen(services, hooks[k]) == []
        assert sorted(set(listener.heard)) == sorted(life(name))
        assert len(listener.heard) <= 3
        # Who was told twice knows it by the id.
        assert len(set(listener.ids)) == 2


def test_a_hook_that_fails_is_tried_again_and_then_given_up_so_that_others_get_their_turn(
    place, services
) -> None:
    pager, listener = hook("pager"), Listener()
    bring_up(services, "down")
    listener.listen(services, pager)
    lose_and_recover(place, services, "down")
    listener.trouble = "the answer was 500"
    for _ in range(HOOK_TRIES - 1):
        assert listener.listen(services, pager) == life("down")[:1]
    assert hook_cursor(services, pager).error == "the answer was 500"
    assert listener.listen(services, pager) == life("down")
    listener.trouble = ""
    assert listener.listen(services, pager) == life("down")[1:]
    assert hook_cursor(services, pager).error == ""


def test_what_only_a_person_can_mend_is_told_once_per_trouble(services) -> None:
    pager, listener = hook("pager", str(EventKind.NEEDS_HUMAN)), Listener()
    trouble = Trouble("big", "blocked", "somebody removed it", 100.0)
    assert listener.listen(services, pager, troubles=(trouble,)) == ["big/needs-human/100"]
    assert listener.listen(services, pager, troubles=(trouble,)) == []
    assert listener.listen(services, pager) == []
    again = Trouble("big", "blocked", "somebody removed it", 900.0)
    assert listener.listen(services, pager, troubles=(again,)) == ["big/needs-human/900"]


def test_records_that_are_gone_are_forgotten(services) -> None:
    pager, listener = hook("pager"), Listener()
    bring_up(services, "gone")
    listener.listen(services, pager)
    assert "slices/gone" in hook_cursor(services, pager).read
    document = services.store.get("slices/gone")
    services.store.delete(document.key, if_generation=document.generation)
    listener.listen(services, pager)
    assert "slices/gone" not in hook_cursor(services, pager).read


def test_slow_hooks_do_not_hold_up_a_pass_for_ever(place, services) -> None:
    pager, other, listener = hook("pager"), hook("other"), Listener()
    bring_up(services, "slow")
    listener.listen(services, pager, other)
    lose_and_recover(place, services, "slow")

    def slow(each: Hook, event: HookEvent) -> str:
        services.clock.sleep(HOOKS_MAX_S + 1.0)
        return listener(each, event)

    for expected in (life("slow")[:1], life("slow")[1:], life("slow")[:1], life("slow")[1:], []):
        listener.heard.clear()
        deliver_events(services, [pager, other], [], [], slow)
        assert listener.heard == expected


def test_a_hook_that_hangs_takes_no_time_from_one_that_works(place, services) -> None:
    hangs, works, listener = hook("a-hangs"), hook("works"), Listener()
    bring_up(services, "patient")
    listener.listen(services, hangs, works)
    lose_and_recover(place, services, "patient")
    heard: list[str] = []

    def send(each: Hook, event: HookEvent) -> str:
        if each.name == "works":
            heard.append(told(event))
            return ""
        services.clock.sleep(HOOKS_MAX_S + 1.0)
        return "took too long"

    for _ in range(2):
        deliver_events(services, [hangs, works], [], [], send)
    assert heard == life("patient")
    assert hook_cursor(services, hangs).error == "took too long"
