"""Run the smoke test on a slice: one attempt, within a limit, and what each worker reported."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.config.settings import Config
from tpuctl.engine.services import Services
from tpuctl.errors import PartialError, PendingError, TpuctlError, UsageError
from tpuctl.lib.text import counted
from tpuctl.model.records import RunRecord, SliceRecord
from tpuctl.model.run_spec import PolicyRequest, RunRequest
from tpuctl.model.shipped_files import read_template
from tpuctl.runs.follow import follow_run, start_run, stop_run
from tpuctl.runs.smoke import SmokeReport, Unfinished, judge_smoke, parse_report, smoke_rows
from tpuctl.runs.submit import Submission, freeze_code, prepare_run, submit_run

BACKENDS: Mapping[str, str] = {"jax": "tpu", "torch_xla": "tpu", "cpu": "cpu"}
"""What programs of an environment's backend run on, as the test's program says it."""
GRACE_S = 5.0
"""The program has nothing to save, and who waits wants to know which host is slow."""


class SmokeTest(Struct, frozen=True):
    """A smoke test that was checked and not begun."""

    submission: Submission
    backend: str
    devices: int
    """How many each worker must have at least; chips of a CPU are not counted."""


def prepare_smoke(
    services: Services,
    config: Config,
    target: SliceRecord,
    env: str | None,
    directory: Path,
    *,
    allow_drift: tuple[str, ...] = (),
) -> SmokeTest:
    """Checks a smoke test of `target`, changes nothing. Raises UsageError, NotFoundError, BadManifestError."""
    program = read_template("smoke.py").decode()
    policy = PolicyRequest(max_failures=0, max_preemptions=0, grace=GRACE_S)
    request = RunRequest(
        on=target.name,
        command=("python3", "-c", program),
        env=env,
        policy=policy,
        no_checkpoint=True,
        allow_drift=allow_drift,
        allow_cpu=True,  # it judges that itself
        per="host",  # and reads its own output: what its environment says of runs does not count
        progress="",
    )
    with tempfile.TemporaryDirectory() as empty:
        code = freeze_code(config, request, Path(empty))
    config = replace(config, require_data=False)
    submission = prepare_run(services, config, request, code, directory, target)
    spec = submission.environment.spec if submission.environment else None
    backend = BACKENDS.get(spec.backend) if spec is not None else "tpu"
    if backend is None:
        name = spec.name if spec is not None else ""
        raise UsageError(
            f"the smoke test runs JAX or PyTorch/XLA, and {name} has none of them", hint="--env jax-tpu"
        )
    if spec is not None:
        argv = (*submission.spec.argv, spec.backend)
        submission = replace(submission, spec=replace(submission.spec, argv=argv))
    devices = target.spec.chips // target.spec.hosts if backend == "tpu" else 1
    return SmokeTest(submission, backend, devices)


def run_smoke(services: Services, test: SmokeTest, run_id: str, limit_s: float) -> list[dict[str, Any]]:
    """A row of each worker, see `smoke_rows`. `limit_s` counts from when every worker runs; what goes on then
    is stopped. Raises PartialError where a worker stands out, TpuctlError where none got so far."""
    record, reports = _run_once(services, test.submission, run_id, limit_s)
    found = judge_smoke(reports, backend=test.backend, devices=test.devices)
    rows = smoke_rows(reports, found)
    if not reports:
        raise TpuctlError(
            f"{record.slice_name} was not tested: {record.reason}", hint=f"tpuctl why {record.slice_name}"
        )
    if found:
        sick = sorted({each.worker for each in found})
        silent = all(each == Unfinished() for each in reports.values())  # nobody wrote anything
        first = record.reason if silent else f"worker {found[0].worker} {found[0].what}"
        raise PartialError(
            f"{len(sick)} of {counted(len(reports), 'worker')} of {record.slice_name} failed: {first}",
            hint=f"tpuctl logs {run_id}",
            details={"workers": rows},
        )
    return rows


def _run_once(
    services: Services, submission: Submission, run_id: str, limit_s: float
) -> tuple[RunRecord, dict[int, SmokeReport | Unfinished]]:
    """The run when it is over, and by worker its report, or how far it came."""
    record = submit_run(services, submission, run_id, named=True)
    started = start_run(services, record.id)
    try:
        ended = follow_run(services, record.id, deadline=services.clock.now() + limit_s)
    except PendingError:
        ended = stop_run(services, record.id)
    workers = started.attempt.workers if started.attempt is not None else ()
    return ended, {worker: _report_of(services, ended, worker) for worker in workers}


def _report_of(services: Services, run: RunRecord, worker: int) -> SmokeReport | Unfinished:
    number = run.attempt.number if run.attempt is not None else 1
    written = {}
    for stream in ("stdout", "stderr"):
        path = Path(services.logs.path(run.id, number, worker, stream))
        written[stream] = path.read_text(errors="replace") if path.exists() else ""
    lines = [line.strip() for line in written["stderr"].splitlines() if line.strip()]
    return parse_report(written["stdout"], lines[-1] if lines else "")
