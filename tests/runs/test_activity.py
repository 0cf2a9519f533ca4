"""What a process does, by its stack as the tools print it."""

from __future__ import annotations

import pytest

from tpuctl.hosts.protocol import ProcessStack
from tpuctl.model.shipped_files import load_hang_table
from tpuctl.runs.activity import (
    Activities,
    Part,
    choose_process,
    classify_process,
    parse_activities,
    parse_frames,
)

TABLE: Activities = parse_activities(load_hang_table())
AT = "/opt/env/lib/python3.11/site-packages"
# As faulthandler and py-spy 0.4.2 printed them of one of four processes of jax 0.10.2 on CPUs, with gloo.
DEVICE = f"""\
Current thread 0x00007f5e9a83fb80 (most recent call first):
  File "{AT}/jax/_src/array.py", line 623 in _value
  File "{AT}/jax/_src/profiler.py", line 420 in wrapper
  File "{AT}/jax/_src/array.py", line 300 in __float__
  File "/home/ada/train.py", line 25 in <module>
"""
DEVICE_SPY = """\
Process 30189: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 30190 (idle): "loader"
    wait (threading.py:327)
    get (queue.py:171)
    run (threading.py:982)
Thread 30189 (idle): "MainThread"
    ArrayImpl._value (jax/_src/array.py:623)
    annotate_function.<locals>.wrapper (jax/_src/profiler.py:420)
    ArrayImpl.__float__ (jax/_src/array.py:300)
    <module> (train.py:25)
"""
COMPILING = f"""\
Thread 0x00007f7e70a84b80 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f7e70a84b80 (most recent call first):
  File "{AT}/jax/_src/compiler.py", line 353 in backend_compile_and_load
  File "{AT}/jax/_src/compiler.py", line 469 in compile_or_get_cached
  File "/home/ada/.tpuctl/runs/r1/1/join/tpuctl_compile_hook.py", line 46 in compile_and_count
  File "{AT}/jax/_src/interpreters/pxla.py", line 1516 in _cached_compilation
  File "{AT}/jax/_src/pjit.py", line 259 in cache_miss
  File "/home/ada/train.py", line 21 in train_step
  File "/home/ada/train.py", line 40 in <module>
"""
QUEUE = """\
Current thread 0x00007f838c21cb80 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/home/ada/data.py", line 12 in next_batch
  File "/home/ada/train.py", line 20 in <module>
"""
OWN = 'Current thread 0x1 (most recent call first):\n  File "/home/ada/data.py", line 7 in read_shard\n'
STACKS = [
    ("S", "futex_do_wait", DEVICE, "device", "waiting for its devices (train.py:25)"),
    ("S", "futex_do_wait", DEVICE_SPY, "device", "waiting for its devices (train.py:25)"),
    ("S", "futex_do_wait", COMPILING, "compiling", "compiling (train.py:21 train_step)"),
    ("S", "futex_do_wait", QUEUE, "queue", "waiting for a queue (data.py:12 next_batch)"),
    ("S", "hrtimer_nanosleep", OWN, "sleeping", "sleeping (data.py:7 read_shard)"),
    ("D", "request_wait_answer", OWN, "fuse", "waiting for a mounted bucket (data.py:7 read_shard)"),
    ("S", "pipe_read", OWN, "files", "reading or writing files or a network (data.py:7 read_shard)"),
    ("R", "", OWN, "program", "in its own code (data.py:7 read_shard)"),
    ("T", "do_signal_stop", "", "stopped", "stopped by a signal"),
    ("S", "do_wait", "[<0>] do_wait+0x5d/0xf0\n", "unknown", "not known what it does"),
    ("S", "", "", "unknown", "not known what it does"),
]


@pytest.mark.parametrize(("state", "waits_in", "text", "activity", "said"), STACKS)
def test_a_process_is_classified_by_its_main_thread(
    state: str, waits_in: str, text: str, activity: str, said: str
) -> None:
    found = classify_process(TABLE, ProcessStack(1, "python train.py", state, waits_in, "faulthandler", text))
    assert (found.id, found.said) == (activity, said)


SAMPLES = [(row.id, sample) for row in TABLE.rows for sample in row.samples]


@pytest.mark.parametrize(("activity", "sample"), SAMPLES)
def test_each_sample_is_what_its_row_says(activity: str, sample: str) -> None:
    if ":" in sample:
        path, function = sample.split(":")
        process = ProcessStack(1, text=f'Current thread 0x1:\n  File "{path}", line 3 in {function}\n')
    else:
        process = ProcessStack(1, waits_in=sample, text=OWN)
    assert classify_process(TABLE, process).id == activity


def test_the_frames_of_the_main_thread_are_told_innermost_first() -> None:
    assert [frame.said for frame in parse_frames(DEVICE_SPY)] == [
        "array.py:623 _value",
        "profiler.py:420 wrapper",
        "array.py:300 __float__",
        "train.py:25",
    ]
    assert parse_frames("nothing of Python\n  here (or:there)\n") == ()


def process(pid: int, text: str, command: str = "python3 train.py") -> ProcessStack:
    return ProcessStack(pid, command, "S", "", "faulthandler", text)


LAUNCHER = (
    'Current thread 0x1:\n  File "torch/distributed/elastic/agent/server/api.py", line 9 in _invoke_run\n'
)
LOADER = 'Current thread 0x1:\n  File "torch/utils/data/_utils/worker.py", line 9 in _worker_loop\n'
CHOICES = [
    ([process(1, "", "sh -c train"), process(2, DEVICE)], 2, "device"),
    ([process(1, LAUNCHER), process(2, COMPILING)], 2, "compiling"),
    ([process(1, DEVICE), process(2, LOADER)], 1, "device"),
    ([process(1, LAUNCHER), process(2, "", "gsutil cp")], 1, "launcher"),
    ([process(1, "", "sh -c train")], 1, "unknown"),
    ([], None, "unknown"),
]


@pytest.mark.parametrize(("processes", "pid", "activity"), CHOICES)
def test_what_a_command_does_is_what_its_program_does(
    processes: list[ProcessStack], pid: int | None, activity: str
) -> None:
    chosen, doing = choose_process((each, classify_process(TABLE, each)) for each in processes)
    assert (chosen.pid if chosen else None, doing.id) == (pid, activity)
    assert doing.part is not Part.ASIDE
