"""A manifest of a run with one preemption, as records make it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.support.jobs import SPEC
from tpuctl.model.attempts import (
    Attempt,
    AttemptPhase,
    Cause,
    CodeState,
    Failure,
    Fault,
    TimelineEntry,
    WorkerEnd,
)
from tpuctl.model.records import Desired, RunRecord, RunState, SliceRecord, SliceState
from tpuctl.model.run_spec import RestartPolicy, RunSpec
from tpuctl.provenance.build import build_attempt, build_end, build_start
from tpuctl.provenance.manifest import SettingSection, assemble, render_part

T0 = 1_795_000_000.0
LOST = Failure("peer-lost", Fault.CLOUD, 1, "connection reset", "a worker went", "none", True)


def an_attempt(number: int, created: float, ran: float, cause: Cause, *, kernel: str = "6.1") -> Attempt:
    """Created 40 s after its slice was ready in the cloud, begun 10 s later."""
    started, ended = created + 10.0, created + 10.0 + ran
    events = [(started, "started"), (ended, str(cause)), (ended, "ended")]
    return Attempt(
        number=number,
        incarnation=number,
        fence=1,
        state=AttemptPhase.ENDED,
        created_at=created,
        workers=(0, 1),
        started_at=started,
        cause=cause,
        ended_at=ended,
        ends=tuple(WorkerEnd(worker, 0 if cause is Cause.SUCCEEDED else None) for worker in (0, 1)),
        timeline=tuple(TimelineEntry(at, event) for at, event in events),
        hosts=tuple({"worker": str(worker), "kernel": kernel, "boot_id": f"b{number}"} for worker in (0, 1)),
        zone="us-central2-b",
        provisioned_at=created - 40.0,
        failure=None if cause is Cause.SUCCEEDED else LOST,
    )


def a_manifest(
    run_id: str = "first", *, argv: tuple[str, ...] = ("python3", "train.py"), kernel: str = "6.1", **spec: Any
) -> dict[str, Any]:
    """Waited 120 s for its slice, ran 600 s, lost it with 300 s of work, waited 60 s and ran 900 s."""
    asked = RunSpec("big", argv, ".", RestartPolicy(), {"SEED": "1"}, {}, checkpoint_dir="gs://b/c", **spec)
    first = an_attempt(1, T0 + 160.0, 600.0, Cause.PREEMPTED, kernel=kernel)
    second = an_attempt(2, T0 + 870.0, 900.0, Cause.SUCCEEDED, kernel=kernel)
    assert first.ended_at is not None
    code = CodeState("a" * 64, "c" * 40, "main", True, "https://example.org/code.git", "d" * 64)
    run = RunRecord(run_id, asked, code, "kim", T0, RunState.RUNNING, newest_checkpoint=first.ended_at - 300.0)
    slice_ = SliceRecord("big", SPEC, "kim", Desired.UP, SliceState.READY, 2, T0)
    settings = {"zone": SettingSection(["us-central2-b"], "tpuctl.yaml")}
    start = build_start(run, slice_, project="lab", version="1.0", configuration=settings)
    rows = [
        build_attempt(run, first, "big", since=T0),
        build_attempt(run, second, "big", since=first.ended_at),
    ]
    over = replace(
        run, state=RunState.SUCCEEDED, reason="done", ended_at=second.ended_at, attempt=second, preemptions=1
    )
    parts = [render_part("", start)]
    for content in (*rows, build_end(over, rows, chips=8, usd_per_hour=4.0)):
        parts.append(render_part(parts[-1].sha256, content))
    return assemble(parts[0], parts[1:-1], parts[-1])
