"""Which worker keeps a program that stands still, by what is known of all of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runs.test_activity import COMPILING, DEVICE, OWN, QUEUE
from tpuctl.hosts.protocol import ProcessStack, WorkerStacks, WorkerState
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.model.shipped_files import load_hang_table
from tpuctl.runs.activity import Doing, Part
from tpuctl.runs.stacks import describe_ended, describe_silent
from tpuctl.runs.triage import SIGNS, HangFacts, gather_facts, judge_hang, parse_hangs
from tpuctl.telemetry.sample import NoServer

TABLE = parse_hangs(load_hang_table())
WAITS = Doing("device", "waiting for its devices", Part.WAITS, "train.py:25")
EVAL = Doing("device", "waiting for its devices", Part.WAITS, "train.py:80 evaluate")
LOADS = Doing("loading", "loading data", Part.WORKS, "train.py:12 next_batch")
COMPILES = Doing("compiling", "compiling", Part.WORKS, "train.py:25 train_step")
HELD = Doing("stopped", "stopped by a signal", Part.UNKNOWN)


def four(doing: Doing, **more: Any) -> list[HangFacts]:
    return [HangFacts(worker, doing, 100 + worker, **more) for worker in range(4)]


def one(
    worker: int, doing: Doing = WAITS, rest: Doing = WAITS, others: Any = None, **more: Any
) -> list[HangFacts]:
    """Four workers, of which `worker` is different."""
    return [*four(rest, **(others or {}))[:worker], HangFacts(worker, doing, 100 + worker, **more),
            *four(rest, **(others or {}))[worker + 1 :]]  # fmt: skip


OTHERS = "worker 0-1,3: waiting for its devices (train.py:25)"
AT = "at launch 57"
# What is known, the verdict, the workers that are named, and what is said.
CASES = [
    (one(2, LOADS), "works", [2], "worker 2: loading data (train.py:12 next_batch); the others wait for it"),
    (one(2, COMPILES), "works", [2], "worker 2: compiling (train.py:25 train_step); the others wait for it"),
    (one(2, HELD), "stopped", [2], "worker 2: stopped by a signal"),
    (one(2, HELD, LOADS), "stopped", [2], "worker 2: stopped by a signal"),
    (one(2, answers=False), "no-answer", [2], f"worker 2: no answer; {OTHERS}"),
    (
        one(2, HangFacts(0).doing, gone=True),
        "program-gone",
        [2],
        "worker 2: its program has ended, although its command lives; the others wait for it",
    ),
    (
        one(2, launch=41, others={"launch": 57}),
        "behind",
        [2],
        "worker 2: waiting for its devices (train.py:25), at launch 41 of 57; the others wait for it",
    ),
    (
        one(2, LOADS, launch=57, others={"launch": 57}),
        "works",
        [2],
        f"worker 2: loading data (train.py:12 next_batch), {AT}; the others wait for it",
    ),
    # A host that hands out work in advance is ahead in loading data; the one behind is another.
    (
        [*one(1, LOADS, launch=57, others={"launch": 57})[:3], HangFacts(3, WAITS, 103, launch=41)],
        "behind",
        [3],
        "worker 3: waiting for its devices (train.py:25), at launch 41 of 57; the others wait for it",
    ),
    (
        one(2, launch=57, fingerprint="0badcafe" * 2, others={"launch": 57, "fingerprint": "cafe" * 4}),
        "other-program",
        [2],
        "worker 2: waiting for its devices (train.py:25), at launch 57, in program 0badcafe0bad; the chips of "
        "the others run another program",
    ),
    (
        one(2, error="HBM ECC uncorrectable"),
        "core-error",
        [2],
        "worker 2: waiting for its devices (train.py:25), a core of it says: HBM ECC uncorrectable",
    ),
    (
        one(2, EVAL),
        "elsewhere",
        [2],
        f"worker 2: waiting for its devices (train.py:80 evaluate); the others wait at another place: {OTHERS}",
    ),
    (
        one(2, step=40.0, others={"step": 41.0}),
        "step-behind",
        [2],
        "worker 2: waiting for its devices (train.py:25), at step 40; the others are ahead",
    ),
    (
        four(WAITS, launch=57),
        "peer",
        [0, 1, 2, 3],
        f"worker 0-3: waiting for its devices (train.py:25), {AT}: all wait for each other, so a link between "
        "chips may be broken",
    ),
    (four(LOADS), "all-work", [0, 1, 2, 3], "worker 0-3: loading data (train.py:12 next_batch)"),
    (
        one(2, LOADS, HangFacts(0).doing),
        "some-work",
        [2],
        "worker 2: loading data (train.py:12 next_batch); worker 0-1,3: not known what it does",
    ),
    ([HangFacts(0, WAITS, 1)], "alone", [0], "worker 0: waiting for its devices (train.py:25)"),
    # Who has ended keeps nobody.
    (
        [
            HangFacts(0, ended=True),
            HangFacts(1, ended=True),
            HangFacts(2, LOADS, 102),
            HangFacts(3, ended=True),
        ],
        "alone",
        [2],
        "worker 2: loading data (train.py:12 next_batch); worker 0-1,3: ended",
    ),
    (
        [HangFacts(0, ended=True), *four(WAITS)[1:]],
        "left",
        [1, 2, 3],
        "worker 1-3: waiting for its devices (train.py:25); worker 0: ended",
    ),
    # A snapshot may be a step apart from another.
    (
        [
            HangFacts(0, LOADS, 100, step=31, moves=True),
            HangFacts(1, LOADS, 101, step=32, moves=True),
            HangFacts(2, LOADS, 102, step=7),
        ],
        "step-behind",
        [2],
        "worker 2: loading data (train.py:12 next_batch), at step 7; the others are ahead",
    ),
]


@pytest.mark.parametrize(("facts", "verdict", "places", "said"), CASES)
def test_the_verdict_names_who_keeps_the_others(
    facts: list[HangFacts], verdict: str, places: list[int], said: str
) -> None:
    found = judge_hang(TABLE, facts, "r", "big")
    assert found is not None
    assert (found.id, list(found.places), found.said) == (verdict, places, said)
    assert found.next.startswith("tpuctl ")


def test_every_verdict_has_a_case_and_every_sign_is_known() -> None:
    known = {row.id for row in TABLE.activities.rows} | set(Part) | set(SIGNS) | {"no-answer", "stopped"}
    used = {sign for rule in TABLE.rules for sign in (*rule.named, *(rule.rest or ()))}
    assert used <= known
    assert {rule.id for rule in TABLE.rules} == {case[1] for case in CASES}


def test_stacks_and_chips_that_say_nothing_are_no_verdict() -> None:
    assert judge_hang(TABLE, four(HangFacts(0).doing), "r", "big") is None


def stacks(worker: int, *texts: str) -> WorkerStacks:
    rows = (
        ProcessStack(100 + n, "python3 train.py", "S", "", "faulthandler", text) for n, text in enumerate(texts)
    )
    return WorkerStacks(worker, tuple(rows))


def said(found: list[WorkerStacks], silent: tuple[int, ...] = ()) -> str:
    status = [WorkerStatus(worker, WorkerState.UNREACHABLE) for worker in silent]
    status += [WorkerStatus(each.worker, WorkerState.RUNNING) for each in found]
    cause = judge_hang(TABLE, gather_facts(TABLE, status, found), "r", "big")
    return cause.said if cause else ""


def test_what_hosts_say_of_their_processes_becomes_a_verdict() -> None:
    wait = [stacks(0, DEVICE), stacks(1, DEVICE)]
    assert said([*wait, stacks(2, COMPILING)]).startswith("worker 2: compiling (train.py:21 train_step); ")
    assert said([*wait, stacks(2, QUEUE)]).startswith("worker 2: waiting for a queue (data.py:12 next_batch); ")
    assert said([*wait, stacks(2, OWN)]).startswith("worker 2: in its own code (data.py:7 read_shard); ")
    shell = ProcessStack(7, "sh -c train; sleep 600"), ProcessStack(8, "sleep 600", "S", "hrtimer_nanosleep")
    assert said([*wait, WorkerStacks(2, shell)]) == (
        "worker 2: its program has ended, although its command lives; the others wait for it"
    )
    silent = "worker 2: no answer; worker 0-1: waiting for its devices (train.py:25)"
    assert said([*wait, WorkerStacks(2, error="timed out")]) == silent
    assert said(wait, silent=(2,)) == silent


def test_ended_programs_and_fresh_steps_blame_nobody() -> None:
    done = [WorkerStacks(worker, state=WorkerState.EXITED, exit_status=0) for worker in (0, 1)]
    assert (
        said([*done, stacks(2, OWN)]) == "worker 2: in its own code (data.py:7 read_shard); worker 0-1: ended"
    )
    status = [
        WorkerStatus(n, WorkerState.RUNNING, time=90.0, step=step, step_at=at)
        for n, step, at in ((0, 31.0, 89.0), (1, 32.0, 90.0), (2, 7.0, 30.0))
    ]
    for stall_s, named in ((60.0, (2,)), (1.0, (0, 2))):
        facts = gather_facts(TABLE, status, [stacks(n, OWN) for n in range(3)], stall_s=stall_s)
        cause = judge_hang(TABLE, facts, "r", "big")
        assert cause is not None
        assert (cause.id, cause.places) == ("step-behind", named)


def test_what_workers_have_in_common_is_a_line_for_people() -> None:
    done = [WorkerStacks(worker, state=WorkerState.EXITED, exit_status=0) for worker in range(4)]
    assert describe_ended(done, "r") == [
        "its program has ended (exit 0) on worker 0-3: `tpuctl attach r` takes note"
    ]
    assert describe_ended([*done[:2], stacks(2, OWN)], "r") == ["its program has ended (exit 0) on worker 0-1"]
    silent = [NoServer(n, port, f"no server: {n}", absent=True) for n in range(4) for port in (8431, 8432)]
    silent += [NoServer(1, 8433, "took the connection and did not answer", hangs=True)]
    assert describe_silent(silent) == [
        "worker 0-3: port 8431-8432: no server",
        "worker 1: port 8433: took the connection and did not answer",
    ]


def test_each_of_several_processes_of_a_worker_is_judged() -> None:
    rows = [ProcessStack(9, "python3 t.py", "S", text=DEVICE if n else QUEUE, process=n) for n in range(4)]
    both = [WorkerStacks(0, tuple(rows)), WorkerStacks(1, tuple(replace_text(each) for each in rows))]
    assert said(both).startswith("worker 0.0: waiting for a queue (data.py:12 next_batch); ")


def replace_text(process: ProcessStack) -> ProcessStack:
    return ProcessStack(process.pid, process.command, "S", text=DEVICE, process=process.process)
