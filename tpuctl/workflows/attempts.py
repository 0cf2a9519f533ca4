"""What one attempt of a run does on its hosts: prepare everywhere, start everywhere, look, stop, collect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tpuctl.core.archive import render_archive
from tpuctl.core.environment import EnvironmentSpec, environment_files, environment_key, parse_frozen
from tpuctl.core.host_protocol import AttemptState as HostAttemptState
from tpuctl.core.host_protocol import AttemptStatus, HostFacts, PrepareReply
from tpuctl.core.launch import HOST_DEFAULTS, render_environment
from tpuctl.core.model import HostTarget, RemoteResult
from tpuctl.core.plan_run import WorkerState, WorkerView
from tpuctl.core.records import Attempt, RunRecord, SliceRecord
from tpuctl.errors import PartialError, TpuctlError
from tpuctl.workflows.host_helper import Answer, HelperReply, HostHelper
from tpuctl.workflows.services import Services
from tpuctl.workflows.slices import host_targets

T = TypeVar("T")

LOG_CHUNK = 4 << 20
"""Bytes of log fetched per call, so that no call takes longer than a step may."""
STREAMS = ("stdout", "stderr")


@dataclass(frozen=True)
class Prepared:
    """Every worker acknowledged. `hosts` is one row per worker, for the manifest."""

    coordinator: str
    hosts: tuple[Mapping[str, str], ...]


class AttemptHosts:
    """The workers of one attempt."""

    def __init__(self, services: Services, run: RunRecord, attempt: Attempt, slice_: SliceRecord) -> None:
        self._services = services
        self._run = run
        self._attempt = attempt
        everyone = host_targets(services, slice_)
        incarnation = slice_.incarnation
        self._coordinator_ip = (
            incarnation.workers[attempt.workers[0]].endpoint.internal_ip if incarnation else ""
        )
        self.targets: list[HostTarget] = [everyone[worker] for worker in attempt.workers]
        self._helper = HostHelper(services.remote, services.helper_source)

    @property
    def helper(self) -> HostHelper:
        return self._helper

    def _ids(self) -> dict[str, Any]:
        return {"run": self._run.id, "attempt": self._attempt.attempt_id}

    def look(self) -> list[WorkerView]:
        """What every worker's supervisor says of the attempt."""
        return self._status(self.targets, self._run.id, self._attempt.attempt_id)

    def _status(self, targets: Sequence[HostTarget], run: str, attempt: str) -> list[WorkerView]:
        return [_view(answer) for answer in self._helper.status(targets, run, attempt)]

    def prepare(self) -> Prepared | str:
        """Phase one. Returns what is still being waited for, or the acknowledgement of all workers.

        Raises PartialError when a worker cannot be prepared.
        """
        facts = _values(self._helper.hello(self.targets), "answer")
        rows = [_host_row(target, fact) for target, fact in zip(self.targets, facts, strict=True)]
        waiting = self._ensure_environment(rows)
        if waiting:
            return waiting
        replies = self._prepare_with(
            self.targets, self._run.id, self._attempt.attempt_id, self._run.code.bundle
        )
        return Prepared(f"{self._coordinator_ip}:{replies[0].free_port}", tuple(rows))

    def _prepare_with(
        self, targets: Sequence[HostTarget], run: str, attempt: str, bundle: str
    ) -> list[PrepareReply]:
        """`prepare` on `targets`, sending the bundle to those that lack it."""
        first = targets[0].worker

        def ask() -> list[PrepareReply]:
            answers = self._helper.prepare(
                targets,
                run=run,
                attempt=attempt,
                fence=self._attempt.fence,
                bundle=bundle,
                want_port=lambda target: target.worker == first,
            )
            return _values(answers, "prepare")

        replies = ask()
        lacking = [t for t, reply in zip(targets, replies, strict=True) if not reply.prepared]
        if not lacking:
            return replies
        _require(self._helper.put_blob(lacking, self._services.store.get_blob(bundle)), "receive the code")
        return ask()

    def _ensure_environment(self, rows: list[dict[str, str]]) -> str:
        """Installs and verifies the pinned environment as a host job; empty once it is there on all workers."""
        reference = self._run.environment
        if reference is None:
            return ""
        spec = parse_frozen(self._services.store.get_blob(reference.spec))
        unfinished = 0
        for minor in sorted({row["python_minor"] for row in rows}):
            chosen = [t for t, row in zip(self.targets, rows, strict=True) if row["python_minor"] == minor]
            unfinished += self._environment_job(spec, minor, chosen, rows)
        return f"environment {spec.name} on {unfinished} workers" if unfinished else ""

    def _environment_job(
        self, spec: EnvironmentSpec, minor: str, targets: list[HostTarget], rows: list[dict[str, str]]
    ) -> int:
        key = environment_key(spec, minor)
        job = (f"env-{key}", f"{self._run.id}-{self._attempt.number}")
        views = {view.worker: view for view in self._status(targets, *job)}
        for row in rows:
            if int(row["worker"]) in views:
                row["environment_key"] = key
        fresh = [t for t in targets if views[t.worker].state in {WorkerState.ABSENT, WorkerState.PREPARED}]
        if fresh:
            self._start_environment_job(spec, minor, fresh, job)
        begun = [view for view in views.values() if view.state is not WorkerState.ABSENT]
        failed = [view for view in begun if view.over and not view.succeeded]
        if failed:
            raise self._environment_failure(spec, job, failed)
        return sum(not view.succeeded for view in views.values())

    def _start_environment_job(
        self, spec: EnvironmentSpec, minor: str, targets: list[HostTarget], job: tuple[str, str]
    ) -> None:
        files = environment_files(spec, minor, self._services.environment_installer)
        digest = self._services.store.put_blob(render_archive(files))
        self._prepare_with(targets, *job, digest)
        request = {
            "run": job[0],
            "attempt": job[1],
            "fence": self._attempt.fence,
            "argv": ["python3", "env_install.py"],
            "env": {},
            "path_prepend": [],
            "cwd": ".",
            "grace_s": 5,
        }
        _values(self._helper.start(targets, request), "install the environment")

    def _environment_failure(
        self, spec: EnvironmentSpec, job: tuple[str, str], failed: Sequence[WorkerView]
    ) -> TpuctlError:
        target = next(t for t in self.targets if t.worker == failed[0].worker)
        result = self._helper.read_log([target], run=job[0], attempt=job[1], stream="stderr")[0]
        tail = result.stdout.decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
        workers = [view.worker for view in failed]
        return PartialError(
            f"environment {spec.name} did not install on {len(workers)} of {len(self.targets)} workers:"
            f" {tail[0]}",
            hint=f"tpuctl exec {self._run.slice_name} -- tail -n 50 .tpuctl/runs/{job[0]}/{job[1]}/stderr.log",
            details={"workers": workers},
        )

    def start(self) -> None:
        """Phase two, on every worker at once. A worker that runs the attempt already is left alone."""
        secrets = {name: self._services.secrets.resolve(ref) for name, ref in self._run.secrets.items()}
        prepend = self._environment_path()
        pinned = self._environment_variables()

        def request(target: HostTarget) -> Mapping[str, Any]:
            variables = render_environment(self._run, self._attempt, target.worker)
            return {
                **self._ids(),
                "fence": self._attempt.fence,
                "argv": list(self._run.argv),
                "env": {**pinned, **variables, **secrets},
                "env_defaults": dict(HOST_DEFAULTS),
                "path_prepend": prepend.get(target.worker, []),
                "cwd": self._run.cwd,
                "grace_s": self._run.policy.grace_s,
            }

        _values(self._helper.start(self.targets, request), "start")

    def _environment_variables(self) -> dict[str, str]:
        reference = self._run.environment
        if reference is None:
            return {}
        return dict(parse_frozen(self._services.store.get_blob(reference.spec)).variables)

    def _environment_path(self) -> dict[int, list[str]]:
        rows = self._attempt.hosts
        return {
            int(row["worker"]): [f"envs/{row['environment_key']}/bin"]
            for row in rows
            if row.get("environment_key")
        }

    def stop(self, grace_s: float) -> None:
        """Asks every worker's supervisor to stop the attempt; returns at once."""
        self._helper.stop(self.targets, self._run.id, self._attempt.attempt_id, grace_s)

    def fetch_logs(self) -> list[tuple[HostTarget, str, bytes]]:
        """One round of what the workers wrote since the last one, appended to this machine's log files."""
        fetched: list[tuple[HostTarget, str, bytes]] = []
        for stream in STREAMS:
            for target, data in self._read_logs(stream):
                self._append(target.worker, stream, data)
                fetched.append((target, stream, data))
        return fetched

    def _read_logs(self, stream: str) -> list[tuple[HostTarget, bytes]]:
        """New bytes of one stream by worker; workers have different offsets, so equal ones go together."""
        found: list[tuple[HostTarget, bytes]] = []
        by_offset: dict[int, list[HostTarget]] = {}
        for target in self.targets:
            by_offset.setdefault(self._offset(target.worker, stream), []).append(target)
        for offset, targets in by_offset.items():
            results = self._helper.read_log(
                targets,
                run=self._run.id,
                attempt=self._attempt.attempt_id,
                stream=stream,
                offset=offset,
                limit=LOG_CHUNK,
            )
            found += [(t, r.stdout) for t, r in zip(targets, results, strict=True) if r.ok and r.stdout]
        return found

    def _offset(self, worker: int, stream: str) -> int:
        return self._services.logs.size(self._run.id, self._attempt.number, worker, stream)

    def _append(self, worker: int, stream: str, data: bytes) -> None:
        self._services.logs.append(self._run.id, self._attempt.number, worker, stream, data)

    def follow_request(self, target: HostTarget) -> Mapping[str, Any]:
        """The request that continues each worker's output where this machine's files end."""
        return {
            **self._ids(),
            "stdout_offset": self._offset(target.worker, "stdout"),
            "stderr_offset": self._offset(target.worker, "stderr"),
        }

    def keep_output(self, worker: int, stream: str, data: bytes) -> None:
        self._append(worker, stream, data)


def _require(replies: Sequence[HelperReply], what: str) -> None:
    """Raises PartialError naming every worker that did not answer well."""
    bad = [reply for reply in replies if reply.error is not None or reply.data is None]
    if not bad:
        return
    first = bad[0]
    why = first.message or describe_result(first.result)
    raise PartialError(
        f"{len(bad)} of {len(replies)} workers did not {what}: worker {first.worker}: {why}",
        details={"workers": [reply.worker for reply in bad]},
    )


def _values(answers: Sequence[Answer[T]], what: str) -> list[T]:
    """The parsed answers of all workers, or PartialError."""
    _require([answer.reply for answer in answers], what)
    return [answer.value for answer in answers if answer.value is not None]


def describe_result(result: RemoteResult) -> str:
    """Why a result is not a success, in words."""
    if result.failure is not None:
        return f"{result.failure}: {result.detail}" if result.detail else str(result.failure)
    tail = result.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return f"exit status {result.exit_status}" + (f": {tail[0]}" if tail else "")


def _view(answer: Answer[AttemptStatus]) -> WorkerView:
    status = answer.value
    if status is None or status.state is HostAttemptState.UNKNOWN:
        detail = answer.message or describe_result(answer.reply.result)
        return WorkerView(answer.worker, WorkerState.UNREACHABLE, detail=detail)
    return WorkerView(answer.worker, WorkerState(status.state.value), status.exit_status, status.signal)


def _host_row(target: HostTarget, facts: HostFacts) -> dict[str, str]:
    return {
        "worker": str(target.worker),
        "hostname": facts.hostname,
        "address": target.address,
        "boot_id": facts.boot_id,
        "kernel": facts.kernel,
        "python": facts.python_version,
        "python_minor": ".".join(facts.python_version.split(".")[:2]),
        "host_key": target.host_key,
    }
