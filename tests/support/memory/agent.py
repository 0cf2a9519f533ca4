"""The agent's own modules, run in this process for a host in memory, on a folder that is its file system.

They are loaded as on a host, by their bare names, with an `os` of their own: the home directory and the
environment are those of the host at work, standard input and output those of its process. What needs real
processes, signals or sockets is not here: attempts, sessions and the serving of contents are played in
`verbs.py` and `placing.py`, in the host's own time.
"""

from __future__ import annotations

import os
import posixpath
import select
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import tpuctl.agent

if TYPE_CHECKING:
    from tests.support.memory.host import MemoryHost
    from tests.support.memory.process import Process, Wait

Json = Mapping[str, Any]
Verb = Callable[[Json, Any], Any]
Conversation = Generator["Wait | float", None, Any]
NAMES = ("client", "base", "contents", "placing", "prepare", "sending", "cleaning", "tree")


class _Here:
    """The host at work, its process, and what came to that on standard input."""

    host: MemoryHost | None = None
    process: Process | None = None
    stdin = b""

    def read(self, handle: int, size: int) -> bytes:
        if handle != 0:
            return os.read(handle, size)
        data, self.stdin = self.stdin[:size], self.stdin[size:]
        return data

    def write(self, handle: int, data: bytes) -> int:
        if handle != 1:
            return os.write(handle, data)
        assert self.process is not None
        self.process.write(bytes(data))
        return len(data)

    def home(self, path: str) -> str:
        assert self.host is not None
        return self.host.home if path == "~" else os.path.expanduser(path)


_here = _Here()


def _variant(module: ModuleType, **own: Any) -> ModuleType:
    made = ModuleType(module.__name__)
    vars(made).update({**vars(module), **own})
    return made


def _load() -> SimpleNamespace:
    paths = _variant(posixpath, expanduser=_here.home)
    own_os = _variant(
        os,
        path=paths,
        read=_here.read,
        write=_here.write,
        umask=lambda _mask: 0o022,
        set_blocking=lambda _handle, _blocking: None,
    )
    own_select = _variant(select, select=lambda read, write, *_: ([], write, []) if write else (read, [], []))
    own = {"os": own_os, "select": own_select}
    before = dict(sys.modules)
    sys.modules.update(own)
    folder = str(Path(tpuctl.agent.__file__).parent)
    sys.path.insert(0, folder)
    try:
        return SimpleNamespace(**{name: import_module(name) for name in NAMES})
    finally:
        del sys.path[0]
        for name in set(sys.modules) - set(before):
            if str(getattr(sys.modules[name], "__file__", "")).startswith(folder):
                del sys.modules[name]
        sys.modules.update({name: before[name] for name in own})


agent = _load()
Refused = agent.client.Refused
need = agent.base.need


def answer(verb: Verb, host: MemoryHost, request: Json) -> Json:
    """What a verb of the agent answers that neither reads nor writes anything else."""
    with on(host):
        answered: Json = verb(request, agent.client.Stdin())
    return answered


def converse(verb: Verb, process: Process, request: Json, size: int) -> Conversation:
    """The same for a verb that reads `size` bytes behind its request, or writes more than its answer."""
    content = yield from process.read_exactly(size)
    with on(process.host, process, content):
        answered = verb(request, agent.client.Stdin())
    return 0 if answered is None else answered


@contextmanager
def on(host: MemoryHost, process: Process | None = None, stdin: bytes = b"") -> Iterator[None]:
    """Within this, the agent's modules work on `host`."""
    before = _here.host, _here.process, _here.stdin
    _here.host, _here.process, _here.stdin = host, process, stdin
    os.makedirs(host.home, exist_ok=True)
    try:
        yield
    finally:
        _here.host, _here.process, _here.stdin = before
