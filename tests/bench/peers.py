"""The ways in which people run one command on many hosts, each as a contender on a farm.

pdsh and clush come from PATH. Python tools are looked for in a virtual environment of their own, so that they
never meet tpuctl's dependencies: `TPUCTL_BENCH_PEERS`, else ~/.cache/tpuctl-bench/venv; make it with
`python -m venv ~/.cache/tpuctl-bench/venv && …/bin/pip install parallel-ssh clustershell ansible-core`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.bench.farms import Farm
from tests.bench.harness import Check, Contender

CLIENTS = Path(__file__).parent / "clients"
ROOT = Path(__file__).parents[2]
FANOUT = 1024


def peers_folder() -> Path:
    """The virtual environment with the Python tools."""
    return Path(os.environ.get("TPUCTL_BENCH_PEERS") or Path.home() / ".cache/tpuctl-bench/venv")


def find_tool(name: str) -> str | None:
    """On PATH, else among the Python tools."""
    return shutil.which(name) or shutil.which(name, path=str(peers_folder() / "bin"))


def ssh_options(farm: Farm) -> list[str]:
    """One key, one file of host keys, no search for others: the fastest that ssh can be."""
    pairs = {
        "IdentityFile": farm.key,
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": farm.known_hosts,
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "BatchMode": "yes",
        "LogLevel": "ERROR",
        "Port": str(farm.port),
        "User": farm.user,
    }
    return ["-F", "/dev/null", *(word for name, value in pairs.items() for word in ("-o", f"{name}={value}"))]


def tpuctl(farm_file: str, command: str, check: Check, *, session: bool = False, name: str = "") -> Contender:
    """tpuctl's fan-out and renderer in a process of their own."""
    mode = "session" if session else "plain"
    argv = [sys.executable, "-m", "tests.bench.clients.tpuctl_client", farm_file, mode, command]
    return Contender(name or f"tpuctl, session {'on' if session else 'off'}", argv, _path(), check)


def ssh_processes(farm: Farm, farm_file: str, command: str, check: Check) -> Contender:
    """A thread and an ssh process per worker, as `gcloud … ssh --worker=all` does it."""
    argv = [sys.executable, str(CLIENTS / "ssh_processes.py"), farm_file, command, *ssh_options(farm)]
    return Contender("one ssh process per worker", argv, {}, check, single_process=False)


def asyncssh_client(farm_file: str, command: str, check: Check) -> Contender:
    argv = [sys.executable, str(CLIENTS / "asyncssh_client.py"), farm_file, command]
    return Contender("asyncssh", argv, {}, check)


def pdsh(farm: Farm, count: int, command: str, check: Check) -> Contender | None:
    found = find_tool("pdsh")
    if found is None:
        return None
    argv = [found, "-R", "ssh", "-f", str(FANOUT), "-w", ",".join(farm.hosts[:count]), command]
    env = {"PDSH_SSH_ARGS": " ".join([*ssh_options(farm), "%h"])}
    return Contender("pdsh", argv, env, check, single_process=False)


def clush(farm: Farm, count: int, command: str, check: Check) -> Contender | None:
    found = find_tool("clush")
    if found is None:
        return None
    hosts = ",".join(farm.hosts[:count])
    options = " ".join(ssh_options(farm))
    argv = [found, "-q", "-f", str(FANOUT), "-o", options, "-w", hosts, command]
    return Contender("clush", argv, {}, check, single_process=False)


def parallel_ssh(farm_file: str, command: str, check: Check) -> Contender | None:
    python = peers_folder() / "bin/python"
    if not python.exists() or not _imports(python, "pssh.clients"):
        return None
    return Contender(
        "parallel-ssh", [str(python), str(CLIENTS / "parallel_ssh_client.py"), farm_file, command], {}, check
    )


def ansible_raw(farm: Farm, count: int, command: str, check: Check) -> Contender | None:
    found = find_tool("ansible")
    if found is None:
        return None
    env = {
        "ANSIBLE_SSH_ARGS": " ".join(ssh_options(farm)),
        "ANSIBLE_HOST_KEY_CHECKING": "1",
        "ANSIBLE_LOCAL_TEMP": str(Path(farm.known_hosts).with_name("ansible")),
        "ANSIBLE_PYTHON_INTERPRETER": "python3",
        "LC_ALL": "C.UTF-8",
    }
    hosts = ",".join(farm.hosts[:count]) + ","
    argv = [found, "all", "-i", hosts, "-f", "50", "-m", "raw", "-a", command]
    return Contender("ansible raw, 50 forks", argv, env, check, single_process=False)


def _imports(python: Path, module: str) -> bool:
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0


def _path() -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT)}
