"""What a client of the conformance table is: a name, what must be installed for it, and its checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Check:
    """One thing that the client did. `detail` says what was seen, or why `ok` is False."""

    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True)
class Client:
    """A program or library that others wrote.

    `requirements`: pip requirements of a virtual environment of its own (`gcsfs==2026.10.1`; the first one
    names the version that the table shows), packages of npm (`npm:NAME@VERSION`), programs that must be on
    PATH (`bin:gcloud`), or modules of Go that the client builds (`go:MODULE@vVERSION`).
    `run(env, work)` drives the client as a process with `env`, the whole environment: PATH has the virtual
    environment first, and the variables of `tpuctl sim env` are set. `work` is an empty folder. It returns its
    checks, the failed ones too, and raises only when nothing could be checked. `hosts`: the tier of the
    simulated hosts; `isolated`, which needs root, for a client that does there what nobody wants done here.
    """

    name: str
    requirements: tuple[str, ...]
    run: Callable[[Mapping[str, str], Path], list[Check]]
    hosts: str = "process"
