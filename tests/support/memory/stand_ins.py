"""What hosts in memory have in place of functions of the agent that need a kernel, root, or a network."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from tests.support.memory import buckets, disks, placing
from tests.support.memory.agent import module, start_program
from tests.support.memory.blocking import the_host, the_process, wait
from tests.support.memory.disks import OperationFailed
from tests.support.memory.process import Process, Wait
from tests.support.memory.system import shared_memory

Json = Mapping[str, Any]
USUAL_PORT, OTHER_PORT = 8476, 40000
"""Where the workers of a run meet; the second one where the first is taken."""
FEED_POLL_S = 0.05
NOBODY = {"sessions": 0, "chip_users": 0, "chips_unknown": False, "writers": 0, "writers_unknown": False}


# Sections of `facts`: what a TPU VM would say. `host.told` replaces any.

FACTS: dict[str, Callable[[Json], Any]] = {
    "host": lambda _: {
        "hostname": the_host().hostname,
        "user": the_host().user,
        "home": the_host().home,
        "root": "sudo",
        "kernel": "6.8.0-memory",
        "os": "Ubuntu 22.04.5 LTS",
        "numa_nodes": 2,
        "nics": 1,
        "worker_id": the_host().environment().get("TPU_WORKER_ID"),
    },
    "pythons": lambda _: [{"path": "/usr/bin/python3", "version": "3.10.12"}],
    "space": lambda _: [{"path": the_host().home, "total_bytes": 100 << 30, "free_bytes": 80 << 30}],
    "disks": lambda _: disks.rows_of(the_host()),
    "points": lambda request: [{"path": path} for path in request.get("points") or []],
    "gcsfuse": lambda _: {"version": buckets.VERSION, "mounts": list(the_host().buckets.values())},
    "chips": lambda _: {"devices": ["/dev/accel0"], "holders": [], "unknown": False, "lockfile": None},
    "kernel": lambda _: {"transparent_hugepages": "madvise", "memlock_bytes": [None, None]},
    "engine": lambda _: {"name": "", "why": ""},
    "variables": lambda _: {},
    "jobs": lambda request: module("jobs").jobs_facts(request),
    "envs": lambda request: module("facts_envs").envs_facts(request),
}


def _section(name: str, body: Callable[[Json], Any]) -> Callable[[Json], Any]:
    return lambda request: the_host().told[name] if name in the_host().told else body(request)


# Programs and operations.


def run_program(argv: list[str], seconds: float | None = None, quiet: bool = False) -> tuple[int, bytes]:
    above, said = the_process(), bytearray()
    child = start_program(argv, above.env, "")

    def emit(stream: str, data: bytes) -> None:
        if stream == "stdout":
            said.extend(data)
        elif not quiet:
            above.write(data, stream)

    child.emit = emit
    child.end_stdin()
    wait(Wait(seconds, ends=(child,)))
    if child.alive:
        child.kill()
        raise TimeoutError(f"{argv[0]} took longer than {seconds} s")
    status = child.exit_status
    return -(child.signal or 0) if status is None else status, bytes(said)


def _operation(body: Callable[[Any, Json], Any], takes_s: float = 0.0) -> Callable[[Json, Any], Any]:
    """One that takes effect at one moment, `takes_s` after it began."""

    def perform(parameters: Json, _job: Any) -> Any:
        if takes_s:
            wait(Wait(takes_s))
        try:
            return body(the_host(), parameters)
        except OperationFailed as error:
            raise module("operations").Failed(str(error), error.permanent, error.hint) from error

    return perform


def vacate(request: Json, _stdin: Any) -> Json:
    module("base").need(request, "only", list)
    return disks.vacate(the_host(), request)


def stacks(request: Json, _stdin: Any) -> Json:
    found = module("state").look(module("base").Attempt(request))
    return {"state": found["state"], "exit_status": found["exit_status"], "processes": []}


# The network and the metadata server.


class HostSocket:
    """One that asks whether a port is free, or whether another host can be reached there."""

    def bind(self, address: tuple[str, int]) -> None:
        self.port = address[1] or OTHER_PORT
        if self.port == the_host().network.taken_port:
            raise OSError("Address already in use")

    def getsockname(self) -> tuple[str, int]:
        return "", self.port

    def connect(self, address: tuple[str, int]) -> None:
        if the_host().network.filtered & {address[1], (address[1], the_host().hostname)}:
            raise TimeoutError

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_: None


def ask(method: str, path: str, body: str = "", timeout: float = 0.0) -> tuple[int, str]:
    del method, body, timeout
    found = the_host().metadata().get(f"instance/{path}")
    return (404, "") if found is None else (200, str(found))


class Heartbeat:
    """`MemoryHost.beat` publishes it as of the moment when somebody looks."""

    def __init__(self, _interval: float) -> None:
        self._host, self._process = the_host(), the_process()
        self._host.beating.append(self._process)

    def stop(self) -> None:
        self._host.beating.remove(self._process)
        self._host.withdrawn = True


# Standard input of sessions.


def open_pipe(name: str, _attend: Callable[[], bool]) -> str:
    return name


def feed() -> int:
    """Hands a piece on when the command wants one, so that what it leaves is known."""
    process, client = the_process(), module("client")
    stdin, host, taken = client.Stdin(), process.host, 0
    pipe = stdin.line().decode()
    while pipe not in host.fed:
        if process.at_eof:
            return 1
        wait(Wait(FEED_POLL_S))
    main = host.fed.pop(pipe)
    while main.alive and (size := stdin.line()):
        piece = b"".join(stdin.exactly(int(size)))
        while main.alive and not main.wants_stdin:
            wait(Wait(FEED_POLL_S))
        if not piece:
            main.end_stdin()
            break
        main.feed(piece)
        taken += len(piece)
    module("base").answer({"taken": taken - main.unread})
    return 0


class Lifeline:
    """The heartbeats of a client: whoever cuts a host off says when they ended."""

    def __init__(self, silence: float) -> None:
        self._process: Process = the_process()
        self.silence = self._process.silence_s = silence

    def listen(self) -> None:
        self._process.stdin.clear()

    def is_cut(self) -> bool:
        return self._process.at_eof


_OPERATIONS = (
    "mount_disk",
    "unmount_disk",
    "repair_disk",
    "grow_disk",
    "hold_disk",
    "renew_hold",
    "release_disk",
)
_disks = {name: _operation(getattr(disks, name)) for name in _OPERATIONS}
STAND_INS: dict[str, dict[str, Any]] = {
    "activity": {
        "activity": lambda _request, _stdin: {**NOBODY, "load": 0.0, "cpus": 240},
        "warn": lambda _request, _stdin: {"terminals": 0},
    },
    "buckets": {
        "mount_bucket": _operation(buckets.mount_bucket, 0.1),
        "unmount_bucket": _operation(buckets.unmount_bucket, 0.1),
    },
    "client": {"Lifeline": Lifeline},
    "diagnose": {"diagnose": lambda _request, _stdin: {"text": "== kernel\nnot known\n"}},
    "disks": {
        **{name: _disks[name] for name in _OPERATIONS[:4]},
        "word_at": lambda path: disks.word_at(the_host(), path),
        "uuid_on": lambda _source, _path: "",
    },
    "facts": {"SECTIONS": dict.fromkeys(FACTS, "sections")},
    "feed": {"feed": feed, "open_pipe": open_pipe},
    "heartbeat": {"Heartbeat": Heartbeat},
    "holds": {name: _disks[name] for name in _OPERATIONS[4:]},
    "machine": {"numa_nodes": lambda: 2, "nics": lambda: 1},
    "metadata": {
        "ask": ask,
        "socket": SimpleNamespace(**{**vars(socket), "socket": HostSocket}),
    },
    "relay": {"serve": placing.serve, "fetch": placing.fetch},
    "rooted": {"run_program": run_program, "as_root": list, "how_root": lambda: "sudo"},
    "secret_files": {"places": lambda: [shared_memory()]},
    "stacks": {"stacks": stacks},
    "status": {"MOUNTS": "/nowhere"},
    "vacate": {"vacate": vacate},
}
sections = SimpleNamespace(**{f"{name}_facts": _section(name, body) for name, body in FACTS.items()})
