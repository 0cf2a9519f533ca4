"""Runs that are kept: `disk gc` and `disk rm` do not delete disks that their manifests name, nor does
`logs_limit_mib` remove their logs."""

from __future__ import annotations

from tpuctl.engine.services import Services
from tpuctl.model.disks import KeptRun
from tpuctl.model.records import RunRecord
from tpuctl.provenance.parts import load_parts
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import KEPT_RUNS, find_slice


def keep_run(services: Services, run: RunRecord, until: float | None) -> KeptRun:
    """Keeps the logs and disks of a run, for good or `until` (epoch seconds)."""
    names = {
        str(row["name"]) for part in load_parts(services, run.id).contents for row in part.get("disks") or ()
    }
    stored = None if run.state.final else find_slice(services, run.spec.slice_name)
    if stored is not None:
        names.update(each.name for each in stored.record.spec.disks)
    kept = KeptRun(run.id, tuple(sorted(names)), services.user, until)
    record_decision(services, f"runs/{run.id}", "keep", ", ".join(("its logs", *kept.disks)))
    return KEPT_RUNS.overwrite(services, run.id, kept)


def release_run(services: Services, run: RunRecord) -> bool:
    """It is kept no more; whether it was."""
    there = KEPT_RUNS.generation(services, run.id)
    if not there:
        return False
    record_decision(services, f"runs/{run.id}", "release", "it is kept no more")
    return KEPT_RUNS.delete(services, run.id, there)
