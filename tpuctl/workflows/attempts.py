"""What one attempt of a run does on its hosts: prepare everywhere, start everywhere, look, stop, collect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpuctl.core.archive import render_archive
from tpuctl.core.environment import EnvironmentSpec, environment_files, environment_key, parse_frozen
from tpuctl.core.launch import HOST_DEFAULTS, render_environment
from tpuctl.core.model import HostTarget, RemoteResult
from tpuctl.core.plan_run import WorkerState, WorkerView
from tpuctl.core.records import Attempt, RunRecord, SliceRecord
from tpuctl.errors import PartialError, TpuctlError
from tpuctl.workflows.host_helper import HelperReply, HostHelper
from tpuctl.workflows.services import Services
from tpuctl.workflows.slices import host_targets

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
        return [_view(reply) for reply in self._helper.call(self.targets, "status", self._ids())]

    def prepare(self) -> Prepared | str:
        """Phase one. Returns what is still being waited for, or the acknowledgement of all workers.

        Raises PartialError when a worker cannot be prepared.
        """
        facts = self._all("hello", {})
        rows = [_host_row(target, fact) for target, fact in zip(self.targets, facts, strict=True)]
        waiting = self._ensure_environment(rows)
        if waiting:
            return waiting
        request = {
            **self._ids(),
            "fence": self._attempt.fence,
            "bundle": self._run.code.bundle,
            "want_port": True,
        }
        replies = self._prepare_with_blob(request)
        port = replies[0]["free_port"]
        return Prepared(f"{self._coordinator_ip}:{port}", tuple(rows))

    def _prepare_with_blob(self, request: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """`prepare` on all, sending the bundle to those that lack it."""
        replies = self._all("prepare", request)
        lacking = [t for t, reply in zip(self.targets, replies, strict=True) if reply.get("missing")]
        if not lacking:
            return replies
        digest = str(request["bundle"])
        content = self._services.store.get_blob(digest)
        put = {"sha256": digest, "size": len(content)}
        _require(self._helper.call(lacking, "put", put, payload=content), "receive the code")
        return self._all("prepare", request)

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
        job = {"run": f"env-{key}", "attempt": f"{self._run.id}-{self._attempt.number}"}
        replies = self._helper.call(targets, "status", job)
        states = {r.worker: _view(r) for r in replies}
        for row in rows:
            if int(row["worker"]) in states:
                row["environment_key"] = key
        fresh = [t for t in targets if states[t.worker].state in {WorkerState.ABSENT, WorkerState.PREPARED}]
        if fresh:
            self._start_environment_job(spec, minor, fresh, job)
        begun = [view for view in states.values() if view.state is not WorkerState.ABSENT]
        failed = [view for view in begun if view.over and not view.succeeded]
        if failed:
            raise self._environment_failure(spec, job, failed)
        return sum(not view.succeeded for view in states.values())

    def _start_environment_job(
        self, spec: EnvironmentSpec, minor: str, targets: list[HostTarget], job: Mapping[str, Any]
    ) -> None:
        content = render_archive(environment_files(spec, minor, self._services.environment_installer))
        digest = self._services.store.put_blob(content)
        put = {"sha256": digest, "size": len(content)}
        _require(self._helper.call(targets, "put", put, payload=content), "receive the environment")
        prepare = {**job, "fence": self._attempt.fence, "bundle": digest}
        _require(self._helper.call(targets, "prepare", prepare), "prepare the environment")
        start = {
            **job,
            "fence": self._attempt.fence,
            "argv": ["python3", "env_install.py"],
            "env": {},
            "cwd": ".",
            "grace_s": 5,
        }
        _require(self._helper.call(targets, "start", start), "install the environment")

    def _environment_failure(
        self, spec: EnvironmentSpec, job: Mapping[str, Any], failed: Sequence[WorkerView]
    ) -> TpuctlError:
        target = next(t for t in self.targets if t.worker == failed[0].worker)
        request = {**job, "stream": "stderr", "offset": 0, "limit": LOG_CHUNK}
        reply = self._helper.call([target], "read", request)[0]
        tail = reply.result.stdout.decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
        workers = [view.worker for view in failed]
        return PartialError(
            f"environment {spec.name} did not install on {len(workers)} of {len(self.targets)} workers:"
            f" {tail[0]}",
            hint=f"tpuctl exec {self._run.slice_name} -- tail -n 50"
            f" .tpuctl/runs/{job['run']}/{job['attempt']}/stderr.log",
            details={"workers": workers},
        )

    def start(self) -> None:
        """Phase two, on every worker at once. A worker that runs the attempt already is left alone."""
        secrets = {name: self._services.secrets.resolve(ref) for name, ref in self._run.secrets.items()}
        prepend = self._environment_path()

        def request(target: HostTarget) -> Mapping[str, Any]:
            variables = render_environment(self._run, self._attempt, target.worker)
            return {
                **self._ids(),
                "fence": self._attempt.fence,
                "argv": list(self._run.argv),
                "env": {**variables, **secrets},
                "env_defaults": dict(HOST_DEFAULTS),
                "path_prepend": prepend.get(target.worker, []),
                "cwd": self._run.cwd,
                "grace_s": self._run.policy.grace_s,
            }

        _require(self._helper.call(self.targets, "start", request), "start")

    def _environment_path(self) -> dict[int, list[str]]:
        rows = self._attempt.hosts
        return {
            int(row["worker"]): [f"envs/{row['environment_key']}/bin"]
            for row in rows
            if row.get("environment_key")
        }

    def stop(self, grace_s: float) -> None:
        """Asks every worker's supervisor to stop the attempt; returns at once."""
        self._helper.call(self.targets, "stop", {**self._ids(), "grace_s": grace_s})

    def fetch_logs(self) -> list[tuple[HostTarget, str, bytes]]:
        """One round of what the workers wrote since the last one, appended to this machine's log files."""
        fetched: list[tuple[HostTarget, str, bytes]] = []
        for stream in STREAMS:
            for target, reply in zip(self.targets, self._read_logs(stream), strict=True):
                if reply.result.ok and reply.result.stdout:
                    self._append(target.worker, stream, reply.result.stdout)
                    fetched.append((target, stream, reply.result.stdout))
        return fetched

    def _read_logs(self, stream: str) -> list[HelperReply]:
        def request(target: HostTarget) -> Mapping[str, Any]:
            offset = self._offset(target.worker, stream)
            return {**self._ids(), "stream": stream, "offset": offset, "limit": LOG_CHUNK}

        return self._helper.call(self.targets, "read", request)

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

    def _all(self, verb: str, request: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return _require(self._helper.call(self.targets, verb, request), verb)


def _require(replies: Sequence[HelperReply], what: str) -> list[Mapping[str, Any]]:
    """The data of all replies, or PartialError naming every worker that did not answer well."""
    bad = [reply for reply in replies if reply.data is None]
    if not bad:
        return [reply.data or {} for reply in replies]
    first = bad[0]
    why = first.message or describe_result(first.result)
    raise PartialError(
        f"{len(bad)} of {len(replies)} workers did not {what}: worker {first.worker}: {why}",
        details={"workers": [reply.worker for reply in bad]},
    )


def describe_result(result: RemoteResult) -> str:
    """Why a result is not a success, in words."""
    if result.failure is not None:
        return f"{result.failure}: {result.detail}" if result.detail else str(result.failure)
    tail = result.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return f"exit status {result.exit_status}" + (f": {tail[0]}" if tail else "")


def _view(reply: HelperReply) -> WorkerView:
    if reply.data is None:
        return WorkerView(
            reply.worker, WorkerState.UNREACHABLE, detail=reply.message or describe_result(reply.result)
        )
    data = reply.data
    return WorkerView(
        reply.worker, WorkerState(str(data["state"])), data.get("exit_status"), data.get("signal")
    )


def _host_row(target: HostTarget, fact: Mapping[str, Any]) -> dict[str, str]:
    version = str(fact.get("python", ""))
    return {
        "worker": str(target.worker),
        "hostname": str(fact.get("hostname", "")),
        "address": target.address,
        "boot_id": str(fact.get("boot_id", "")),
        "kernel": str(fact.get("kernel", "")),
        "python": version,
        "python_minor": ".".join(version.split(".")[:2]),
        "host_key": target.host_key,
    }
