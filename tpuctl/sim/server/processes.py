"""Finding and ending the simulator's processes through /proc (Linux)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tpuctl.sim.hosts.backend import WORLD_VARIABLE
from tpuctl.sim.hosts.init import prctl, try_kill

_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1
KILL_TIMEOUT_S = 10.0


def die_with_parent() -> None:
    """Asks the kernel for SIGTERM when the parent is gone."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command name; empty when there is no such process."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    stat = _stat(pid)
    return bool(stat) and stat[0] not in ("Z", "X")


def start_time(pid: int) -> int:
    """Clock ticks between boot and the start of the process; 0 when it is gone."""
    stat = _stat(pid)
    return int(stat[19]) if stat else 0


def _pids() -> list[int]:
    return [int(each.name) for each in _PROC.iterdir() if each.name.isdecimal()]


def members(world_id: str) -> list[int]:
    """Live processes whose environment names this world, except the caller."""
    mark = f"{WORLD_VARIABLE}={world_id}".encode()
    found = []
    for pid in _pids():
        try:
            variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # gone meanwhile, or somebody else's
        if mark in variables and pid != os.getpid() and alive(pid):
            found.append(pid)
    return found


def kill_world(world_id: str) -> None:
    """Kills every process of this world until none is left; forks in between are caught by looking again."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while (found := members(world_id)) and time.monotonic() < deadline:
        for pid in found:
            try_kill(pid)
        time.sleep(0.01)
