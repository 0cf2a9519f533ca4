"""The contents of a manifest's parts, from records. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from tpuctl.lib.codec import to_data
from tpuctl.lib.time import render_time
from tpuctl.model.attempts import Attempt, Cause, RunTotals, WorkerEnd
from tpuctl.model.records import WITH_HOSTS, RunRecord, SliceRecord
from tpuctl.provenance.manifest import (
    AttemptSection,
    AttemptSlice,
    CodeSection,
    CommandSection,
    EndSection,
    EnvironmentSection,
    EventRow,
    ExitRow,
    Phases,
    ProcessRow,
    Row,
    RunSection,
    SettingSection,
    SliceSection,
    VariablesSection,
)
from tpuctl.provenance.phases import cost_by_phase, goodput, sum_phases

HOUR_S = 3600.0


def build_start(
    run: RunRecord,
    slice_: SliceRecord | None,
    *,
    project: str,
    version: str,
    configuration: Mapping[str, SettingSection] | None = None,
    package_versions: Mapping[str, str] | None = None,
    environment_variables: Mapping[str, str] | None = None,
    preset: Sequence[Row] = (),
    checks: Sequence[Row] = (),
) -> dict[str, Any]:
    """What was asked for, and on what, and the `checks` before that. `package_versions` are those of the
    run's environment, `environment_variables` what it sets, `preset` what its keys about runs came to."""
    spec, environment = run.spec, run.spec.environment
    sections: dict[str, Any] = {
        "run": RunSection(
            id=run.id,
            owner=run.owner,
            project=project,
            created=render_time(run.created_at),
            tpuctl_version=version,
            rerun_of=run.rerun_of or None,
            group=spec.group or None,
            tags=spec.tags,
            wandb_id=run.wandb_id,
        ),
        "command": _command(run),
        "configuration": dict(configuration or {}),
        "code": CodeSection(
            bundle_sha256=run.code.bundle,
            commit=run.code.commit,
            branch=run.code.branch,
            dirty=run.code.dirty,
            remote=run.code.remote_url,
            diff_sha256=run.code.diff,
        ),
        "environment": None
        if environment is None
        else EnvironmentSection(
            environment.name, environment.spec, dict(package_versions or {}), spec.allow_drift, tuple(preset)
        ),
        "variables": VariablesSection(dict(spec.variables), dict(environment_variables or {})),
        "slice": _slice(slice_, spec.slice_name),
        "data": [to_data(receipt) for receipt in spec.data],
        "synthetic": spec.synthetic,
        "checks": [dict(row) for row in checks],
    }
    found: dict[str, Any] = to_data(sections)
    return found


def _command(run: RunRecord) -> CommandSection:
    spec = run.spec
    return CommandSection(
        argv=spec.argv,
        cwd=spec.cwd,
        workers=spec.workers,
        secrets=tuple(sorted(spec.secrets)),
        max_failures=spec.policy.max_failures,
        max_preemptions=spec.policy.max_preemptions,
        grace_s=spec.policy.grace_s,
        **spec.kept() | {"checkpoint_dir": run.checkpoint_place, "progress": spec.progress or None},
    )


def _slice(slice_: SliceRecord | None, name: str) -> SliceSection:
    if slice_ is None:
        return SliceSection(name)
    asked = {"name": slice_.name, **to_data(slice_.spec)}
    return SliceSection(**{field: asked[field] for field in SliceSection.__struct_fields__})


def build_attempt(
    run: RunRecord,
    attempt: Attempt,
    slice_name: str,
    *,
    since: float,
    before: Row | None = None,
    disks: Sequence[Row] = (),
    mounts: Sequence[Row] = (),
) -> dict[str, Any]:
    """One attempt that has ended. `since`: when the one `before` it had ended, or the run was asked for (epoch
    seconds). `disks` and `mounts` are what was mounted on its hosts."""
    found: dict[str, Any] = to_data(
        AttemptSection(
            number=attempt.number,
            slice=AttemptSlice(
                incarnation=attempt.incarnation,
                cloud_name=f"{slice_name}-{attempt.incarnation}",
                node_uid=attempt.node_uid,
                zone=attempt.zone,
                requested=render_time(attempt.requested_at),
                provisioned=render_time(attempt.provisioned_at),
                ready=render_time(attempt.ready_at),
            ),
            created=render_time(attempt.created_at),
            started=render_time(attempt.started_at),
            ended=render_time(attempt.ended_at),
            cause=str(attempt.cause) if attempt.cause else None,
            why=attempt.suspect_why or None,
            failure=to_data(attempt.failure) if attempt.failure is not None else None,
            joined=attempt.joined or None,
            step=attempt.step,
            steps=attempt.steps,
            steps_per_s=attempt.steps_per_s,
            hosts=tuple(dict(row) for row in attempt.hosts),
            disks=tuple(disks),
            mounts=tuple(mounts),
            checks=tuple(attempt.checks),
            variables=tuple(attempt.variables),
            exits=tuple(map(_exit, attempt.ends)),
            phases=attempt_phases(run, attempt, since, before),
            timeline=tuple(
                EventRow(render_time(entry.at), entry.event, entry.detail or None)
                for entry in sorted(attempt.timeline, key=lambda entry: entry.at)
            ),
        )
    )
    return found


def _exit(end: WorkerEnd) -> ExitRow:
    return ExitRow(
        end.worker,
        end.exit_status,
        end.signal,
        None if end.ran_s is None else round(end.ran_s, 1),
        end.note or None,
        end.process,
        tuple(ProcessRow(each.process, each.exit_status, each.signal) for each in end.processes),
    )


def attempt_phases(run: RunRecord, attempt: Attempt, since: float, before: Row | None = None) -> Phases:
    """Where the time of an attempt went, since the end of the one `before` it: until its slice was seen last,
    where the cloud took it."""
    ended, started = attempt.ended_at, attempt.started_at
    until = ended if attempt.alive_at is None or ended is None else min(attempt.alive_at, ended)
    joined = next((entry.at for entry in attempt.timeline if entry.event == "joined"), None)
    ready = attempt.provisioned_at
    had = None if ready is None else max(ready, since)
    asked = since
    if had is not None and _left_alive(before, attempt.incarnation):
        asked = min(max(attempt.requested_at or since, since), had)
    return Phases(
        waiting_s=_span(asked, had),
        provisioning_s=_span(had, attempt.created_at),
        preparing_s=_span(attempt.created_at, until if started is None else started),
        first_step_s=_span(started, joined),
        training_s=_span(joined, until),
        running_s=_span(started, until) if started is not None or ended is None else 0.0,
        lost_s=_lost(run, attempt, until),
        unseen_s=round((_span(since, asked) or 0.0) + (_span(until, ended) or 0.0), 1),
    )


def _left_alive(before: Row | None, incarnation: int) -> bool:
    """Whether the attempt `before` ended on another incarnation, which was still there then: until the next one
    was asked for it was being deleted, or was waited for."""
    if before is None or before.get("cause") in (None, Cause.PREEMPTED):
        return False
    return bool((before.get("slice") or {}).get("incarnation") != incarnation)


def _lost(run: RunRecord, attempt: Attempt, until: float | None) -> float | None:
    """Seconds from the newest checkpoint of the program to the end of an attempt that did not end well: nothing
    is won while it is found out why. The next one goes on from there, and loses nothing else."""
    if attempt.started_at is None and attempt.ended_at is not None:
        return 0.0
    if attempt.cause in {None, Cause.STOPPED} or attempt.started_at is None:
        return None
    if attempt.cause is Cause.SUCCEEDED:
        return 0.0
    if run.spec.no_checkpoint:
        return _span(attempt.started_at, until)
    if run.newest_checkpoint <= 0.0:
        return None
    return _span(max(run.newest_checkpoint, attempt.started_at), until)


def _span(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round(max(0.0, end - begin), 1)


def build_end(
    run: RunRecord, attempts: Sequence[Row], *, chips: int | None, usd_per_hour: float | None
) -> dict[str, Any]:
    """How a run ended, after `attempts`, which are contents of parts. `usd_per_hour` is the list price of its
    slice."""
    spent = build_totals(attempts, chips=chips, usd_per_hour=usd_per_hour)
    found: dict[str, Any] = to_data(
        EndSection(
            state=str(run.state),
            reason=run.reason,
            ended=render_time(run.ended_at),
            attempts=run.attempt.number if run.attempt else 0,
            failures=run.failures,
            preemptions=run.preemptions,
            restarts=run.restarts,
            phases=sum_phases(row.get("phases") or {} for row in attempts),
            chips=chips,
            chip_hours=spent.chip_hours,
            usd=spent.usd,
            by_phase=cost_by_phase(attempts, spent),
        )
    )
    return found


def build_totals(attempts: Sequence[Row], *, chips: int | None, usd_per_hour: float | None) -> RunTotals:
    """What went into `attempts`. A row without `created` is time between attempts."""
    rows = [row for row in attempts if "created" in row or (row.get("phases") or {}).get("provisioning_s")]
    hours = _slice_hours(rows)
    unseen = (sum_phases(row.get("phases") or {} for row in attempts).unseen_s or 0.0) / HOUR_S
    return RunTotals(
        goodput=goodput(to_data(sum_phases(row.get("phases") or {} for row in attempts))),
        chip_hours=None if chips is None or hours is None else round(chips * hours, 3),
        usd=None if usd_per_hour is None or hours is None else round(usd_per_hour * hours, 2),
        unseen_usd=round(usd_per_hour * unseen, 2) if usd_per_hour is not None and unseen else None,
    )


def build_current(
    run: RunRecord,
    slice_name: str,
    *,
    since: float,
    now: float,
    slice_: SliceRecord | None = None,
    before: Row | None = None,
) -> dict[str, Any]:
    """What a run that is not over does since the end of its last attempt, which is `before`: its open attempt,
    as if it ended now and nothing were lost, or its wait for the next one."""
    attempt = run.attempt
    if attempt is None or attempt.ended_at is not None:
        return {"phases": to_data(_idle_phases(slice_, since, now, before))}
    row = build_attempt(run, replace(attempt, ended_at=now), slice_name, since=since, before=before)
    return {**row, "phases": {**row["phases"], "lost_s": 0.0}}


def _idle_phases(slice_: SliceRecord | None, since: float, now: float, before: Row | None) -> Phases:
    """A run that waits for its next attempt has its slice from when the cloud has it ready; one that its last
    attempt left alive may be there until the next is asked for."""
    life = slice_.incarnation if slice_ is not None else None
    asked, ready = since, now
    same = life is not None and before is not None and before["slice"].get("incarnation") == life.number
    if slice_ is not None and life is not None and same:
        taken = before is not None and before.get("cause") == Cause.PREEMPTED
        here = slice_.state in WITH_HOSTS
        ready = since if here and not taken else now
        asked = since if here or taken else now
    elif life is not None:
        ready = max(since, min(life.cloud_ready_at or now, now))
        asked = min(max(life.requested_at, since), ready) if _left_alive(before, life.number) else since
    return Phases(
        waiting_s=_span(asked, ready),
        provisioning_s=_span(ready, now),
        preparing_s=0.0,
        first_step_s=0.0,
        training_s=0.0,
        running_s=0.0,
        lost_s=0.0,
        unseen_s=_span(since, asked),
    )


def _slice_hours(attempts: Sequence[Row]) -> float | None:
    """Hours for which the run had its slice: from when the cloud had it ready, or from the end of the attempt
    before on it, to the end of each attempt."""
    phases = sum_phases(row.get("phases") or {} for row in attempts)
    parts = (phases.provisioning_s, phases.preparing_s, phases.running_s)
    known = [part for part in parts if part is not None]
    return sum(known) / HOUR_S if len(known) == len(parts) else None
