"""The pinned environment of a run on its hosts: installed and verified by a supervised host job per worker."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from tpuctl.engine.services import Services
from tpuctl.envs.pinned import PinnedEnvironment, environment_files, environment_key, parse_frozen
from tpuctl.envs.spec import run_variables
from tpuctl.errors import PartialError, TpuctlError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.deadline import is_late
from tpuctl.hosts.protocol import WorkerState, WorkerView
from tpuctl.lib.text import counted
from tpuctl.model.cloud import HostTarget
from tpuctl.model.records import Attempt, RunRecord
from tpuctl.transfer.bundle import store_content
from tpuctl.transfer.prepare import prepare_on, require_values, view_of
from tpuctl.transfer.tree import make_tree


class HostEnvironment:
    """One environment on the workers of one attempt."""

    def __init__(
        self, services: Services, agent: HostAgent, spec: PinnedEnvironment, run: RunRecord, attempt: Attempt
    ) -> None:
        self._services = services
        self._agent = agent
        self._pinned = spec
        self._spec = spec.spec
        self._run = run
        self._attempt = attempt

    def variables(self) -> dict[str, str]:
        """What the environment sets for every run in it."""
        return run_variables(self._spec)

    def ensure(
        self, targets: Sequence[HostTarget], rows: list[dict[str, str]], until: float | None = None
    ) -> str:
        """Installs and verifies where that is not done; says what is waited for, or nothing when all is there.

        Adds `environment_key` and `packages_sha256` to `rows`, one per target. Sends nothing after `until`.
        Raises PartialError when an install failed or when hosts of one Python report different packages.
        """
        unfinished = 0
        for minor in sorted({row["python_minor"] for row in rows}):
            chosen = [(t, row) for t, row in zip(targets, rows, strict=True) if row["python_minor"] == minor]
            unfinished += self._ensure_on(minor, [t for t, _ in chosen], [row for _, row in chosen], until)
        return f"environment {self._spec.name} on {counted(unfinished, 'worker')}" if unfinished else ""

    def _ensure_on(
        self, minor: str, targets: list[HostTarget], rows: list[dict[str, str]], until: float | None
    ) -> int:
        key = environment_key(self._pinned, minor)
        job = (f"env-{key}", f"{self._run.id}-{self._attempt.number}")
        views = [view_of(answer) for answer in self._agent.status(targets, *job)]
        idle = {WorkerState.ABSENT, WorkerState.PREPARED}
        fresh = [t for t, view in zip(targets, views, strict=True) if view.state in idle]
        if fresh:
            self._start(minor, fresh, job, until)
        failed = [v for v in views if v.state is not WorkerState.ABSENT and v.over and not v.succeeded]
        if failed:
            raise self._failure(targets, job, failed)
        unfinished = sum(not view.succeeded for view in views)
        if not unfinished:
            self._attest(key, targets, rows, job)
        return unfinished

    def _start(self, minor: str, targets: list[HostTarget], job: tuple[str, str], until: float | None) -> None:
        files = environment_files(self._pinned, minor, self._services.environment_installer)
        bundle = store_content(self._services.store, make_tree(files))
        fence = self._attempt.fence
        prepared = prepare_on(
            self._services,
            self._agent,
            targets,
            run=job[0],
            attempt=job[1],
            fence=fence,
            bundle=bundle,
            owner=job[1],
            until=until,
            send_first=is_late(self._services.clock, until),
        )
        if isinstance(prepared, str):
            return
        request = {
            "run": job[0],
            "attempt": job[1],
            "fence": fence,
            "argv": ["python3", "env_install.py"],
            "env": {},
            "path_prepend": [],
            "cwd": ".",
            "grace_s": 5,
        }
        require_values(self._agent.start(targets, request), "install the environment")

    def _attest(
        self, key: str, targets: list[HostTarget], rows: list[dict[str, str]], job: tuple[str, str]
    ) -> None:
        """Every host says itself what is installed; a host that differs from the others is refused."""
        results = self._agent.read_log(targets, run=job[0], attempt=job[1], stream="stdout")
        for row, result in zip(rows, results, strict=True):
            packages = _reported_packages(result.stdout)
            canonical = json.dumps(packages, sort_keys=True).encode()
            row["environment_key"] = key
            row["packages_sha256"] = hashlib.sha256(canonical).hexdigest()
            row["packages"] = " ".join(f"{name}=={version}" for name, version in sorted(packages.items()))
        digests = {row["packages_sha256"] for row in rows}
        if len(digests) > 1:
            odd = [row["worker"] for row in rows if row["packages_sha256"] != rows[0]["packages_sha256"]]
            raise PartialError(
                f"environment {self._spec.name} differs: workers {', '.join(odd)} are not like worker"
                f" {rows[0]['worker']}",
                hint=f"tpuctl exec {self._run.slice_name} -- rm -rf .tpuctl/envs/{key}",
                details={"workers": odd},
            )

    def _failure(
        self, targets: Sequence[HostTarget], job: tuple[str, str], failed: Sequence[WorkerView]
    ) -> TpuctlError:
        target = next(t for t in targets if t.worker == failed[0].worker)
        result = self._agent.read_log([target], run=job[0], attempt=job[1], stream="stderr")[0]
        tail = result.stdout.decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
        workers = [view.worker for view in failed]
        return PartialError(
            f"environment {self._spec.name} did not install on {counted(len(workers), 'worker')}: {tail[0]}",
            hint=f"tpuctl exec {self._run.slice_name} -- tail -n 50 .tpuctl/runs/{job[0]}/{job[1]}/stderr.log",
            details={"workers": workers},
        )


def host_environment(
    services: Services, agent: HostAgent, run: RunRecord, attempt: Attempt
) -> HostEnvironment | None:
    """The environment that a run was frozen with, if any."""
    if run.environment is None:
        return None
    spec = parse_frozen(services.store.get_blob(run.environment.spec))
    return HostEnvironment(services, agent, spec, run, attempt)


def _reported_packages(stdout: bytes) -> dict[str, str]:
    """The packages in the installer's report, its last line of output. Empty when there is none."""
    for line in reversed(stdout.decode(errors="replace").splitlines()):
        if line.startswith("{"):
            report: dict[str, Any] = json.loads(line)
            return {str(name): str(version) for name, version in report["packages"].items()}
    return {}
