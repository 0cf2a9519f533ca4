"""A manifest of a run with one preemption, as records make it, and one attempt as earlier versions kept it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.support.jobs import SPEC
from tpuctl.model.records import (
    Attempt,
    AttemptPhase,
    Cause,
    CodeState,
    Desired,
    Failure,
    Fault,
    RunRecord,
    RunState,
    SliceRecord,
    SliceState,
    TimelineEntry,
    WorkerEnd,
)
from tpuctl.model.run_spec import Policy, RunSpec
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
    asked = RunSpec("big", argv, ".", Policy(), {"SEED": "1"}, {}, checkpoint_dir="gs://b/c", **spec)
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
        parts.append(render_part(parts[-1]["sha256"], content))
    return assemble(parts[0], parts[1:-1], parts[-1])


OLD_ATTEMPT: dict[str, Any] = {
    "schema": "tpuctl.attempt/1",
    "run": {
        "id": "first",
        "attempt": 1,
        "owner": "kim",
        "created": "2026-11-21T10:15:00Z",
        "started": "2026-11-21T10:16:00Z",
        "ended": "2026-11-21T10:26:00Z",
        "cause": "preempted",
        "why": "the cloud took it",
        "tpuctl_version": "0.9",
    },
    "command": {
        "argv": ["python3", "train.py"],
        "cwd": ".",
        "variables": {"SEED": "1"},
        "secrets": ["TOKEN"],
        "checkpoint_dir": None,
        "allow_cpu": False,
    },
    "code": {"bundle_sha256": "a" * 64, "commit": "c" * 40, "branch": "main", "dirty": False, "remote": None},
    "environment": {"name": "tiny", "spec_sha256": "e" * 64, "allowed_drift": ["clock"]},
    "slice": {
        "name": "big",
        "incarnation": 1,
        "cloud_name": "big-1",
        "node_uid": "7",
        "accelerator_type": "v4-16",
        "hosts": 2,
        "chips": 8,
        "zone": "us-central2-b",
        "tier": "spot",
        "runtime_version": "tpu-ubuntu2204-base",
    },
    "disks": [{"name": "data-g1", "path": "/mnt/data", "mode": "ro", "generation": 1}],
    "mounts": [],
    "hosts": [{"worker": "0", "kernel": "6.1"}, {"worker": "1", "kernel": "6.1"}],
    "exits": [{"worker": 0, "exit_status": None, "signal": None, "ran_s": None, "note": None}],
    "timeline": [{"at": "2026-11-21T10:15:30Z", "event": "attempt", "detail": "on big-1"}],
}
