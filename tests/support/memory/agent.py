"""The agent on a host in memory: the product's own modules, run in this process.

They are loaded as on a host, by their bare names, with another operating system below them (`system.py`): the
host's folder, clock, processes and standard streams. Every supervisor, and a verb that waits, has a thread of
its own (`blocking.py`). In place of functions that need a kernel or a network are those of `stand_ins.py`.
"""

from __future__ import annotations

import builtins
import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import tpuctl.agent
from tests.support.memory.blocking import At, Exit, blocking, look_again, the_process, wait
from tests.support.memory.process import NEVER, Process, Program, Steps, Wait
from tests.support.memory.system import MODULES, READY, open_file

if TYPE_CHECKING:
    from tests.support.memory.host import MemoryHost

Json = Mapping[str, Any]
FOLDER = Path(tpuctl.agent.__file__).parent
WAIT = {"session", "feed", "follow", "copy", "lacks", "receive", "survey", "send"}
"""Verbs that may wait without being asked to."""
_loaded: dict[str, ModuleType] = {}


def module(name: str) -> ModuleType:
    """One of the agent's."""
    if name not in _loaded:
        from tests.support.memory.stand_ins import STAND_INS

        path = FOLDER / f"{name}.py"
        made = _loaded[name] = ModuleType(name)
        vars(made).update(__file__=str(path), __builtins__=_BUILTINS)
        exec(compile(path.read_bytes(), str(path), "exec"), vars(made))
        for replaced, by in STAND_INS.get(name, {}).items():
            if not hasattr(made, replaced):
                raise AssertionError(f"{path} has no {replaced}")
            setattr(made, replaced, by)
        if name == "processes":
            vars(made)["Tree"] = _tree_of(made)
        elif name == "supervisor":
            vars(made)["detach"] = detach
    return _loaded[name]


def _import(name: str, *more: Any) -> Any:
    if name in MODULES:
        return MODULES[name]
    if name == "sections":
        from tests.support.memory.stand_ins import sections

        return sections
    return module(name) if (FOLDER / f"{name}.py").is_file() else builtins.__import__(name, *more)


_BUILTINS = {**vars(builtins), "__import__": _import, "open": open_file}


def on(host: MemoryHost) -> At:
    """Within this, the agent's modules work on `host`."""
    host.make_folders()
    return At(host)


def verb(name: str) -> Program:
    """A start of the agent."""

    def program(process: Process) -> Steps:
        process.asks = True
        line = yield from process.read_line()
        process.stdin.appendleft(line + b"\n")
        process.host.make_folders()
        if process.host.unfit and "hello" in name:
            process.print(json.dumps({"error": "failed", "message": process.host.unfit}))
            return 1
        if WAIT.intersection(name.split("+")) or b"patience_s" in line:
            return (yield from run([name])(process))
        with At(process.host, process):
            try:
                return module("entry").main([name])
            except Exit as end:
                return end.status

    return program


def run(arguments: Sequence[str]) -> Program:
    return blocking(lambda: module("entry").main(list(arguments)))


def carry(process: Process) -> Steps:
    """The agent's own program with arguments, as a copy between hosts runs it."""
    return (yield from run(process.argv[4:])(process))


def detach(body: Callable[[], None]) -> int:
    """`detach` of the supervisor: the daemon works until it waits, then it is ready."""
    above = the_process()
    daemon = above.host.start(blocking(lambda: body()), env=above.env)
    daemon.outbox = None
    daemon.end_stdin()
    daemon.resume()
    return READY


def start_program(argv: Sequence[str | bytes] | Callable[[], Any], env: Mapping[Any, Any], cwd: str) -> Process:
    """A child of the process at work; OSError where a real host has no such program."""
    above, variables = the_process(), {os.fsdecode(name): os.fsdecode(env[name]) for name in env}
    if cwd:
        variables["PWD"] = os.fsdecode(cwd)
    if callable(argv):
        body: Program | None = blocking(lambda: module("processes").perform(argv, dict(variables)))
        words: list[str] = []
    else:
        words = [os.fsdecode(word) for word in argv]
        body = above.host.network.find_program(above.host, words)
    if body is None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")
    child = above.host.start(body, argv=words, env=variables, parent=above)
    child.outbox = None
    return child


def _log_to(process: Process, stdout: int, stderr: int) -> Callable[[str, bytes], None]:
    paths = {name: os.readlink(f"/proc/self/fd/{n}") for name, n in (("stdout", stdout), ("stderr", stderr))}

    def emit(stream: str, data: bytes) -> None:
        try:
            handle = os.open(paths[stream], os.O_WRONLY | os.O_APPEND)
        except FileNotFoundError:
            return  # it was removed, and nobody reads it any more
        os.write(handle, data)
        os.utime(handle, (process.now, process.now))
        os.close(handle)
        process.host.stir()

    return emit


def _tree_of(processes: ModuleType) -> type:
    """`Tree` over processes in memory: how it begins, waits and takes note is here, how it ends is its own."""

    class Tree(processes.Tree):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            self.process = the_process()
            self.process.adopts = True
            self.process.on_term = lambda: self._ask_to_stop(None, None)
            self.asked_to_stop = False
            self.mains: list[int] = []
            self.ends: dict[int, tuple[int, float]] = {}
            self.started: list[Process] = []
            self.until: Callable[[], float] = lambda: NEVER

        def spawn(self, argv: Any, env: Any, cwd: Any, stdout: Any, stderr: Any, stdin: Any = None) -> None:
            child = start_program(argv, env, cwd)
            self.mains.append(child.pid)
            self.started.append(child)
            if stdout is None:
                child.emit, child.reader = self.process.emit, self.process
            else:
                child.emit = _log_to(child, stdout, stderr)
            if stdin is None:
                child.end_stdin()
            else:
                child.host.fed[stdin] = child

        def reap(self) -> bool:
            over = [each for each in enumerate(self.started) if each[1].ended_at is not None]
            for index, each in sorted(over, key=lambda pair: pair[1].ended_at or 0.0):
                self.ends.setdefault(index, (each.signal or (each.exit_status or 0) << 8, each.ended_at or 0.0))
            return bool(self.children())

        def children(self) -> list[Process]:
            return [each for each in self.process.host.processes if each.parent is self.process and each.alive]

        def wait(self, timeout: float, handles: Sequence[int] = ()) -> list[int]:
            process, until = self.process, self.until()
            if until > process.now:
                look_again(timeout, until=until, stdin=bool(handles), ends=tuple(self.children()))
            else:
                wait(Wait(timeout))  # what was killed is about to go
            self.reap()
            return [0] if handles and (process.stdin or process.at_eof) else []

        def end_all(self, grace: Callable[[], float], kept: Callable[[], set[int]] = set) -> set[int]:
            began = self.process.now
            self.until = lambda: began + grace()
            left: set[int] = super().end_all(grace, kept)
            return left

    return Tree


@dataclass(frozen=True)
class Attempt:
    """One attempt of one run, as the agent's files and the host's processes show it."""

    run: str
    number: str
    state: str
    wanted: str | None
    """The tree that a copy is to complete."""
    supervisor: Process | None
    """None of one that has ended."""


def attempts_of(host: MemoryHost) -> list[Attempt]:
    found = []
    with on(host):
        state, base = module("state"), module("base")
        for each in state.list_attempts():
            status = state.read_status(each) or {}
            alive = bool(status) and state.supervisor_alive(status)
            supervisor = host.find_process(status["supervisor"]["pid"]) if alive else None
            wanted = (base.read_json(each.path("prepared.json")) or {}).get("wanted")
            found.append(Attempt(each.run, each.number, state.look(each)["state"], wanted, supervisor))
    return found


def fence_of(host: MemoryHost, run_id: str) -> int:
    with on(host):
        base = module("base")
        return int(base.read_json(base.root("runs", run_id, "fence.json"))["fence"])
