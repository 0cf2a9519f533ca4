"""Processes of a run on its hosts: how many there are, what they are called, and which logs are theirs.

`3.2` is the third process of worker 3. Where a worker has one process, it goes by the number of the worker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tpuctl.lib.text import Place

LOG_STREAMS = ("stdout", "stderr")
PER = ("host", "chip", "torchrun")
"""What `run --per` takes: one process for each host or chip, or one for each chip that torchrun starts."""
TOPOLOGY = frozenset(
    (
        "CLOUD_TPU_TASK_ID",
        "TPU_CHIPS_PER_PROCESS_BOUNDS",
        "TPU_PROCESS_ADDRESSES",
        "TPU_PROCESS_BOUNDS",
        "TPU_PROCESS_PORT",
        "TPU_RUNTIME_METRICS_PORTS",
        "TPU_VISIBLE_CHIPS",
    )
)
"""What `--per chip` sets for each process, see `tpuctl/agent/launch.py`."""
_PLACE = re.compile(r"(\d{1,6})\.(\d{1,3})")


def times_of(stream: str) -> str:
    """The name under which the index of a log is kept beside it: when its host saw what had been written (see
    `tpuctl/agent/log_times.py`)."""
    return f"{stream}-times"


METRICS = "metrics"
"""The file with the numbers that a worker's program printed (see `tpuctl/agent/columns.py`)."""


def log_streams(processes: int) -> tuple[str, ...]:
    """The logs of a worker: `2.stdout` is of its third process, `stdout` of what is above several."""
    several = range(processes if processes > 1 else 0)
    return (*LOG_STREAMS, *(f"{number}.{kind}" for number in several for kind in LOG_STREAMS))


def split_stream(worker: int, stream: str) -> tuple[Place, str]:
    """Who writes a log, and which of the two it is."""
    number, dot, kind = stream.rpartition(".")
    return ((worker, int(number)), kind) if dot else (worker, stream)


def stream_of(process: int | None, kind: str) -> str:
    """The log of a process of a worker; None where that has one."""
    return kind if process is None else f"{process}.{kind}"


def place_of(worker: int, process: int | None) -> Place:
    return worker if process is None else (worker, process)


def worker_of(place: Place) -> int:
    """The worker, also of one of its processes."""
    return place if isinstance(place, int) else place[0]


def parse_place(text: str) -> Place:
    """`3`, or `3.2`."""
    worker, dot, process = text.partition(".")
    return (int(worker), int(process)) if dot else int(worker)


def parse_places(text: str) -> tuple[str, frozenset[tuple[int, int]]]:
    """What `--worker` names of workers, and the processes beside those: `0-3` and 7.2 of `0-3,7.2`."""
    words = [word.strip() for word in text.split(",")]
    matches = {word: _PLACE.fullmatch(word) for word in words}
    processes = frozenset((int(m[1]), int(m[2])) for m in matches.values() if m is not None)
    return ",".join(word for word in words if matches[word] is None), processes


def is_chosen(place: Place, workers: Iterable[int], processes: frozenset[Place]) -> bool:
    """Whether a place is one of these, or on one of these workers."""
    return place in processes or (place if isinstance(place, int) else place[0]) in workers
