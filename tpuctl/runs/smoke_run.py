"""Run the smoke test on a slice: one attempt, within a limit, and what each worker reported."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from tpuctl.config.settings import Config
from tpuctl.engine.services import Services
from tpuctl.envs.pinned import parse_frozen
from tpuctl.errors import PendingError, UsageError
from tpuctl.model.records import RunRecord, SliceRecord
from tpuctl.model.run_spec import PolicyRequest, RunRequest
from tpuctl.model.shipped_files import read_template
from tpuctl.runs.follow import follow_run, start_run, stop_run
from tpuctl.runs.smoke import SmokeReport, parse_report
from tpuctl.runs.submit import Submission, freeze_code, prepare_run, submit_run

BACKENDS: Mapping[str, str] = {"jax": "tpu", "cpu": "cpu"}
"""What programs of an environment's backend run on, in JAX's words."""


class SmokeTest(Struct, frozen=True):
    """A smoke test that was checked and not begun."""

    submission: Submission
    backend: str
    devices: int
    """How many each worker must have at least; chips of a CPU are not counted."""


def prepare_smoke(
    services: Services, config: Config, target: SliceRecord, env: str | None, directory: Path
) -> SmokeTest:
    """Checks a smoke test of `target`, changes nothing. Raises UsageError, NotFoundError, BadManifestError."""
    program = read_template("smoke.py").decode()
    policy = PolicyRequest(max_failures=0, max_preemptions=0)
    command = ("python3", "-c", program)
    request = RunRequest(
        on=target.name, command=command, env=env, policy=policy, no_checkpoint=True, allow_cpu=True
    )
    with tempfile.TemporaryDirectory() as empty:
        code = freeze_code(config, request, Path(empty))
    submission = prepare_run(services, config, request, code, directory, target)
    spec = parse_frozen(submission.environment.content).spec if submission.environment else None
    backend = BACKENDS.get(spec.backend) if spec is not None else "tpu"
    if backend is None:
        name = spec.name if spec is not None else ""
        raise UsageError(f"the smoke test runs JAX, and {name} has none", hint="--env jax-tpu")
    devices = target.spec.chips // target.spec.hosts if backend == "tpu" else 1
    return SmokeTest(submission, backend, devices)


def run_smoke(
    services: Services, test: SmokeTest, run_id: str, limit_s: float
) -> tuple[RunRecord, Mapping[int, SmokeReport | str]]:
    """The ended run, and of each worker its report or the last line that it wrote. `limit_s` counts from when
    every worker runs; what goes on then is stopped."""
    record = submit_run(services, test.submission, run_id, named=True)
    started = start_run(services, record.id)
    try:
        ended = follow_run(services, record.id, deadline=services.clock.now() + limit_s)
    except PendingError:
        ended = stop_run(services, record.id)
    workers = started.attempt.workers if started.attempt is not None else ()
    return ended, {worker: _report_of(services, ended, worker) for worker in workers}


def _report_of(services: Services, run: RunRecord, worker: int) -> SmokeReport | str:
    number = run.attempt.number if run.attempt is not None else 1
    written = {}
    for stream in ("stdout", "stderr"):
        path = Path(services.logs.path(run.id, number, worker, stream))
        written[stream] = path.read_text(errors="replace") if path.exists() else ""
    report = parse_report(written["stdout"])
    if report is not None:
        return report
    lines = [line.strip() for line in written["stderr"].splitlines() if line.strip()]
    return lines[-1] if lines else ""
