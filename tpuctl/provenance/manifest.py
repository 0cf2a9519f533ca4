"""The manifest of one attempt: enough to tell what ran, where, and how it ended. Write-once, no secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.lib.time import render_time
from tpuctl.model.records import Attempt, RunRecord, SliceRecord, TimelineEntry

SCHEMA = "tpuctl.attempt/1"


def build_manifest(
    run: RunRecord,
    slice_: SliceRecord | None,
    attempt: Attempt,
    *,
    version: str,
    story: Sequence[TimelineEntry] = (),
    disks: Sequence[Mapping[str, Any]] = (),
    mounts: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The manifest as plain data. `story` is what happened to the slice during the attempt,
    `disks` and `mounts` what was mounted on its hosts."""
    return {
        "schema": SCHEMA,
        "run": {
            "id": run.id,
            "attempt": attempt.number,
            "owner": run.owner,
            "created": render_time(run.created_at),
            "started": render_time(attempt.started_at),
            "ended": render_time(attempt.ended_at),
            "cause": attempt.cause,
            "why": attempt.suspect_why or None,
            "tpuctl_version": version,
        },
        "command": {
            "argv": list(run.spec.argv),
            "cwd": run.spec.cwd,
            "variables": dict(sorted(run.spec.variables.items())),
            "secrets": sorted(run.spec.secrets),
            "checkpoint_dir": run.checkpoint_place,
            "allow_cpu": run.spec.allow_cpu,
        },
        "code": _code(run),
        "environment": None
        if run.spec.environment is None
        else {
            "name": run.spec.environment.name,
            "spec_sha256": run.spec.environment.spec,
            "allowed_drift": list(run.spec.allow_drift),
        },
        "slice": _slice(slice_, attempt),
        "disks": [dict(row) for row in disks],
        "mounts": [dict(row) for row in mounts],
        "hosts": [dict(row) for row in attempt.hosts],
        "exits": [
            {
                "worker": e.worker,
                "exit_status": e.exit_status,
                "signal": e.signal,
                "ran_s": None if e.ran_s is None else round(e.ran_s, 1),
                "note": e.note or None,
            }
            for e in attempt.ends
        ],
        "timeline": [
            {"at": render_time(entry.at), "event": entry.event, "detail": entry.detail or None}
            for entry in sorted([*story, *attempt.timeline], key=lambda entry: entry.at)
        ],
    }


def _code(run: RunRecord) -> Mapping[str, Any]:
    code = run.code
    return {
        "bundle_sha256": code.bundle,
        "commit": code.commit,
        "branch": code.branch,
        "dirty": code.dirty,
        "remote": code.remote_url,
        "diff_sha256": code.diff,
    }


def _slice(slice_: SliceRecord | None, attempt: Attempt) -> Mapping[str, Any]:
    if slice_ is None:
        return {"incarnation": attempt.incarnation}
    spec = slice_.spec
    current = slice_.incarnation
    same = current is not None and current.number == attempt.incarnation
    return {
        "name": slice_.name,
        "incarnation": attempt.incarnation,
        "cloud_name": f"{slice_.name}-{attempt.incarnation}",
        "node_uid": current.node_uid if current is not None and same else None,
        "accelerator_type": spec.accelerator_type,
        "hosts": spec.hosts,
        "chips": spec.chips,
        "zone": spec.zone,
        "tier": spec.tier,
        "runtime_version": spec.runtime_version,
    }
