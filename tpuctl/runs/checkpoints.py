"""Does a run get anywhere between preemptions? Told from its checkpoints, without touching its code."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime

from tpuctl.lib.names import ACCESS_PROBE
from tpuctl.lib.time import render_span
from tpuctl.model.attempts import Attempt
from tpuctl.model.cloud import ObjectInfo

FRUITLESS_MAX = 5
"""Attempts in a row that the cloud ended before a newer checkpoint was written, until a person is asked."""


def checkpoint_times(objects: Iterable[ObjectInfo], prefix: str) -> list[float]:
    """When each checkpoint was completed, oldest first (epoch seconds).

    A checkpoint is what lies under one name directly below `prefix`, a file or a directory of files; it is
    complete with its last object. Marker objects of folders and objects without a time do not count.
    """
    newest: dict[str, float] = {}
    for item in objects:
        rest = item.name.removeprefix(prefix).lstrip("/")
        if not rest or rest.startswith(ACCESS_PROBE) or item.name.endswith("/") or not item.updated:
            continue
        at = datetime.fromisoformat(item.updated).timestamp()
        step = rest.split("/", 1)[0]
        newest[step] = max(at, newest.get(step, 0.0))
    return sorted(newest.values())


def describe_fruitless(attempts: Sequence[Attempt], times: Sequence[float]) -> str:
    """Why a person is asked: how long attempts live, and how long a checkpoint takes."""
    lives = [
        attempt.ended_at - attempt.started_at
        for attempt in attempts
        if attempt.started_at is not None and attempt.ended_at is not None
    ]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    life = f"median life {render_span(statistics.median(lives))}" if lives else "no attempt ever began to run"
    if gaps:
        pace = f"one checkpoint interval {render_span(statistics.median(gaps))}"
    else:
        pace = "one checkpoint in all" if times else "no checkpoint was ever written"
    return f"{FRUITLESS_MAX} attempts ended without a newer checkpoint: {life}, {pace}"
