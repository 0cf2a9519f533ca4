"""What hooks may be, what they are told, and under which ids."""

from __future__ import annotations

from typing import Any

import pytest

from tpuctl.config.hooks import EventKind, parse_hooks
from tpuctl.engine.ports import Document
from tpuctl.errors import BadConfigError
from tpuctl.notify.events import (
    Cursor,
    Read,
    is_history,
    render_event,
    run_events,
    slice_events,
    trouble_events,
)
from tpuctl.watch.heartbeat import Trouble

PAGER = {"name": "pager", "events": ["needs-human"], "command": ["/bin/page", "me"]}


def journal(*actions: str) -> list[Document]:
    """`action@node` entries, one a second."""
    pairs = [action.split("@") for action in actions]
    return [
        Document(
            f"journal/slices/big/{n:016d}",
            n,
            {"at": float(n), "action": action, "reason": "because", "incarnation": node},
        )
        for n, (action, node) in enumerate(pairs)
    ]


def told(*actions: str) -> list[str]:
    """`POSITION/event`, the position without zeros in front."""
    found = slice_events("slices/big", journal(*actions))
    return [f"{int(event.id)}/{event.kind}" for event in found]


LIFE = ("up@", "create@big-1", "booting@big-1", "ready@big-1")
LOSS = ("preempted@big-1", "delete@big-1", "renew@big-1", "create@big-2")


def test_a_first_life_is_nothing_to_tell() -> None:
    assert told(*LIFE) == []


def test_a_loss_and_the_recovery_are_told_in_order() -> None:
    assert told(*LIFE, *LOSS, "ready@big-2") == ["4/preempted", "8/recovered"]


def test_a_deletion_that_may_lose_something_is_told() -> None:
    assert told(*LIFE, "down@big-1", "unsaved@big-1", "delete@big-1") == ["5/unsaved"]


def test_what_a_crash_wrote_down_twice_is_told_once_under_the_first_position() -> None:
    again = (*LIFE, "preempted@big-1", *LOSS, "ready@big-2", "ready@big-2")
    assert told(*again) == ["4/preempted", "9/recovered"]


def test_a_failed_create_of_a_new_slice_is_no_loss_but_one_of_a_live_slice_is() -> None:
    assert told("up@", "create-failed@big-1", "ready@big-2") == []
    assert told(*LIFE, "create-failed@big-1", "ready@big-2") == ["5/recovered"]


def test_a_slice_that_was_taken_down_and_up_again_has_not_recovered() -> None:
    assert told(*LIFE, "preempted@big-1", "down@big-1", "gone@big-1", "up@big-1", "ready@big-2") == [
        "4/preempted"
    ]


@pytest.mark.parametrize("action", ["refused", "removed"])
def test_what_only_a_person_can_solve(action: str) -> None:
    assert told(*LIFE, f"{action}@big-1") == ["4/needs-human"]


@pytest.mark.parametrize(("state", "count"), [("gave-up", 1), ("failed", 1), ("succeeded", 0), ("stopped", 0)])
def test_a_run_that_is_not_started_again(state: str, count: int) -> None:
    record = {"state": state, "ended_at": 5.0, "created_at": 1.0, "reason": "100 preemptions"}
    assert len(run_events("runs/r", {}, record)) == count


def test_what_ended_a_week_ago_is_history() -> None:
    assert is_history({"ended_at": 0.0}, 8 * 86400.0)
    assert not is_history({"ended_at": 0.0}, 86400.0)
    assert not is_history({"ended_at": None}, 8 * 86400.0)


def test_a_block_is_told_at_once_and_a_failure_when_it_lasts() -> None:
    blocked, blip, lasting = (
        Trouble("a", "blocked", "w", 1.0, 1),
        Trouble("b", "failed", "w", 1.0, 2),
        Trouble("c", "blind", "w", 1.0, 3),
    )
    pending = trouble_events([blocked, blip, lasting], ())
    assert [(each.subject, each.kind) for each in pending] == [
        ("a", EventKind.NEEDS_HUMAN),
        ("c", EventKind.NEEDS_HUMAN),
    ]
    cursor = Cursor().after(pending[0], "m1").after(pending[1], "m2")
    assert trouble_events([blocked, lasting], cursor.troubled) == []
    # m1 no longer sees its own; m2's stays until somebody sees it settled.
    assert cursor.without_resolved("m1", [], set()).troubled == {"c": "m2"}
    assert cursor.without_resolved("m1", [blocked], {"c"}).troubled == {"a": "m1"}


def test_what_was_told_of_a_slice_is_followed_by_the_rest_of_it() -> None:
    first, second = slice_events("slices/big", journal(*LIFE, *LOSS, "ready@big-2"))
    cursor = Cursor(read={"slices/big": Read(7), "slices/small": Read(9, "x")}, tries=3).after(first, "m")
    assert cursor.read == {"slices/big": Read(0, first.id), "slices/small": Read(9, "x")}
    assert (cursor.tries, second.id > first.id) == (0, True)


def test_an_event_says_the_same_on_every_machine() -> None:
    [event] = slice_events("slices/big", journal("removed@big-7"))
    content = render_event(event, store_id="s1", project="p", profile="default", host="vm")
    assert content["id"] == "s1/slices/big/0000000000000000"
    assert (content["kind"], content["name"], content["event"]) == ("slice", "big", "needs-human")
    assert content["text"] == "tpuctl (p): big needs-human: removed: because"


def test_hooks_are_lists_of_words_with_a_name_or_a_digest() -> None:
    named, plain = parse_hooks([PAGER, {"events": ["preempted"], "webhook": "https://x/secret"}], "f")
    assert (named.name, named.command, named.timeout_s) == ("pager", ("/bin/page", "me"), 30.0)
    assert plain.events == {EventKind.PREEMPTED}
    assert len(plain.name) == 12
    assert "secret" not in plain.key


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": 1}, "must be a list"),
        (["x"], "keys and values"),
        ([{**PAGER, "command": "rm -rf /"}], "list of words"),
        ([{**PAGER, "webhook": "https://x"}], "needs one of"),
        ([{"events": ["preempted"]}], "needs one of"),
        ([{**PAGER, "events": ["preemted"]}], "not a list of events"),
        ([{**PAGER, "events": []}], "not a list of events"),
        ([{**PAGER, "events": ["test"]}], "not a list of events"),
        ([{**PAGER, "evnts": []}], "unknown key 'evnts'"),
        ([{"events": ["preempted"], "webhook": "http://example.com"}], "https"),
        ([{**PAGER, "timeout_s": 3600}], "timeout_s"),
        ([{**PAGER, "name": "../x"}], "name"),
        ([PAGER, PAGER], "two hooks"),
    ],
)
def test_mistakes_in_hooks_name_the_file_and_the_key(value: Any, words: str) -> None:
    with pytest.raises(BadConfigError, match=words) as caught:
        parse_hooks(value, "config.yaml")
    assert caught.value.message.startswith("config.yaml")


LOST = "/mnt/data on worker 1: gcsfuse died"
OLD_TIMELINE = [
    {"at": 1.0, "event": "started", "detail": ""},
    {"at": 2.0, "event": "mount-lost", "detail": LOST},
    {"at": 3.0, "event": "mount-back", "detail": "well"},
]
OVER = {"state": "failed", "created_at": 0.0, "ended_at": 9.0, "reason": "worker 0 exited with 1"}
END = ("gave-up", EventKind.GAVE_UP, 9.0, "failed: worker 0 exited with 1")


def entry(at: float, action: str, reason: str) -> dict[str, Any]:
    return {"at": at, "action": action, "reason": reason}


def told_of_run(journal: dict[str, Any], record: dict[str, Any]) -> list[tuple[str, str, float, str]]:
    return [(each.id, each.kind, each.at, each.detail) for each in run_events("runs/r", journal, record)]


def test_of_a_run_the_journal_is_told_with_what_befell_attempts_before_the_last() -> None:
    journal = {
        "gave-up": entry(9.0, "failed", "worker 0 exited with 1"),
        "00001-00001": entry(2.0, "mount-lost", LOST),
        "00001-00002": entry(3.0, "mount-back", "well"),
        "00002-00001": entry(4.0, "stalled", "stands still"),
    }
    assert told_of_run(journal, {"state": "failed", "created_at": 0.0}) == [
        ("00001-00001", EventKind.MOUNT_LOST, 2.0, LOST),
        ("00002-00001", EventKind.NEEDS_HUMAN, 4.0, "stands still"),
        END,
    ]


@pytest.mark.parametrize("action", ["stalled", "slow", "not-finite", "recompiled", "on-cpu"])
def test_what_befalls_a_program_is_for_a_person(action: str) -> None:
    [(_, kind, *_)] = told_of_run({"00001-00001": entry(2.0, action, "so")}, {"state": "running"})
    assert kind is EventKind.NEEDS_HUMAN


def test_what_an_earlier_version_wrote_into_the_record_alone_is_told_under_the_same_ids() -> None:
    """Its ids are in cursors, and users drop what they saw by them."""
    record = {**OVER, "attempt": {"number": 1, "timeline": OLD_TIMELINE}}
    lost = ("00001-00001", EventKind.MOUNT_LOST, 2.0, LOST)
    assert told_of_run({}, record) == [lost, END]
    later = {"00001-00003": entry(5.0, "stalled", "stands still"), "gave-up": entry(9.0, "failed", "no")}
    assert told_of_run(later, record) == [
        lost,
        ("00001-00003", EventKind.NEEDS_HUMAN, 5.0, "stands still"),
        (*END[:3], "failed: no"),
    ]
