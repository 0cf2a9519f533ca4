"""The verbs `facts` and `provision` on a host in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.memory import buckets, disks
from tests.support.memory.agent import Json, Refused, need
from tests.support.memory.disks import OperationFailed
from tests.support.memory.process import Process, Program, Steps, Wait

if TYPE_CHECKING:
    from tests.support.memory.host import MemoryHost

PROVISION = "provision-"
MARKER = "tpuctl-env.json"
Operation = Callable[["Process", Json, str], Steps]


@dataclass
class Job:
    """What a provisioning job was asked to do and how far it got."""

    operations: list[Json]
    tries: int = 1
    done: int = 0
    doing: str = ""
    failed: Json | None = None
    results: list[Any] = field(default_factory=list)

    def stands(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in ("tries", "done", "doing", "failed", "results")}
        return {**told, "of": len(self.operations)}


def facts_of(host: MemoryHost, request: Json, jobs: list[Json]) -> Json:
    """What a TPU VM would say; `host.told` replaces sections."""
    marks = sorted(Path(host.home, ".tpuctl", "envs").glob(f"*/{MARKER}"))
    sections: dict[str, Any] = {
        "jobs": jobs,
        "host": {
            "hostname": host.hostname,
            "user": host.user,
            "home": host.home,
            "root": "sudo",
            "kernel": "6.8.0-memory",
            "os": "Ubuntu 22.04.5 LTS",
            "worker_id": host.environment().get("TPU_WORKER_ID"),
        },
        "pythons": [{"path": "/usr/bin/python3", "version": "3.10.12"}],
        "space": [{"path": host.home, "total_bytes": 100 << 30, "free_bytes": 80 << 30}],
        "disks": disks.rows_of(host),
        "points": [{"path": path} for path in request.get("points") or []],
        "gcsfuse": {"version": buckets.VERSION, "mounts": list(host.buckets.values())},
        "chips": {"devices": ["/dev/accel0"], "holders": [], "unknown": False, "lockfile": None},
        "envs": [{"key": path.parent.name, "mark": json.loads(path.read_bytes())} for path in marks],
        "kernel": {
            "transparent_hugepages": "madvise",
            "memlock_bytes": [None, None],
        },
        "variables": {},
        **host.told,
    }
    wanted = request.get("sections") or list(sections)
    unknown = [name for name in wanted if name not in sections]
    if unknown:
        raise Refused("bad-request", f"no such sections: {', '.join(unknown)}")
    told = {name: sections[name] for name in wanted}
    return {"schema": 1, "boot_id": host.boot_id, "time": host.time, "failed": {}, **told}


def check_request(request: Json) -> None:
    operations, lasts = need(request, "operations", list), need(request, "deadline_s", int)
    if not str(request.get("run")).startswith(PROVISION) or not operations or lasts < 1:
        raise Refused("bad-request", f"no such job: {request.get('run')!r}")
    for operation in operations:
        if operation.get("kind") not in OPERATIONS:
            raise Refused("bad-request", f"no such operation: {operation!r}")


def work(job: Job, folder: str) -> Program:
    """The job: its operations, one after the other."""

    def program(process: Process) -> Steps:
        for operation in job.operations:
            job.doing = str(operation.get("title") or operation["kind"])
            process.print(job.doing, "stderr")
            try:
                result = yield from OPERATIONS[operation["kind"]](process, operation["parameters"], folder)
            except OperationFailed as error:
                said = {"message": str(error), "permanent": error.permanent, "hint": error.hint}
                job.failed = {"title": job.doing, **said}
                return 1
            job.done += 1
            job.results.append(result)
        job.doing = ""
        return 0

    return program


def run(process: Process, parameters: Json, folder: str) -> Steps:
    argv, said = list(parameters["argv"]), {"stdout": bytearray(), "stderr": bytearray()}
    body = process.host.network.find_program(process.host, argv)
    if body is None:
        raise OperationFailed(f"cannot run {argv[0]}: No such file or directory", permanent=True)
    child = process.host.start(body, argv=argv, env={**process.env, "PWD": folder}, tree=process.tree)

    def emit(stream: str, data: bytes) -> None:
        said[stream].extend(data)
        process.write(data, "stderr")

    child.outbox, child.emit = None, emit
    while child.alive:
        yield Wait(change=(child,))
    if child.exit_status != 0:
        lines = (said["stderr"] or said["stdout"]).decode().strip().splitlines()
        raise OperationFailed(lines[-1] if lines else f"exit status {child.exit_status}")
    answers: Iterator[str] = (
        line for line in reversed(said["stdout"].decode().splitlines()) if line[:1] == "{"
    )
    line = next(answers, None)
    return json.loads(line) if line else None


def at_once(body: Callable[[MemoryHost, Json], Any], takes_s: float = 0.0) -> Operation:
    """An operation that takes effect at one moment, `takes_s` after it began."""

    def operation(process: Process, parameters: Json, folder: str) -> Steps:
        del folder
        if takes_s:
            yield takes_s
        return body(process.host, parameters)

    return operation


OPERATIONS: dict[str, Operation] = {
    "run": run,
    "mount_disk": at_once(disks.mount_disk),
    "unmount_disk": at_once(disks.unmount_disk),
    "hold_disk": at_once(disks.hold_disk),
    "renew_hold": at_once(disks.renew_hold),
    "release_disk": at_once(disks.release_disk),
    "repair_disk": at_once(disks.repair_disk),
    "grow_disk": at_once(disks.grow_disk),
    "mount_bucket": at_once(buckets.mount_bucket, 0.1),
    "unmount_bucket": at_once(buckets.unmount_bucket, 0.1),
}
"""How operations of each kind are performed; tests may add some."""
