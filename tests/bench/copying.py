"""One file to every worker: tpuctl sends it once and the hosts pass it on; scp sends it to each."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.bench.gcloud import must, plain_python
from tests.bench.harness import BenchError, Budget, Contender, Plan, Report, compare, lines, scratch
from tests.bench.startup import TPUCTL, sim_environment
from tpuctl.sim.server import control
from tpuctl.sim.server.info import SimInfo
from tpuctl.sim.server.options import SimOptions

SIZE = 20_000_000
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
PROJECT_MB = 100
CLIENT = Path(__file__).parent / "clients" / "scp_processes.py"
THEIRS, OURS = "one scp per worker", "tpuctl cp"


def measure(plan: Plan) -> list[Report]:
    """To 32 hosts on port 22, which takes root. Each round sends a new file; making it is in both figures."""
    if os.geteuid() != 0:
        return []
    accelerator, hosts = ("v4-32", 4) if plan.quick else ("v4-256", 32)
    with scratch() as folder, plain_python():
        info = control.up(folder / "sim", SimOptions(delays="instant"))
        try:
            env = sim_environment(folder)
            must([TPUCTL, "up", accelerator, "big", "--spot", "--pay"], env, folder)
            contenders = [_scp(folder, info), _tpuctl(folder, env)]
            compare(contenders, 1)
            found = compare(contenders, max(1, plan.rounds // 2))
            copies, again = _sent_copies(folder, env)
            changed = _sent_for_one_change(folder, env)
        finally:
            control.down(folder / "sim")
    return [
        Report(
            title=f"A file of {SIZE // 1_000_000} MB to {hosts} workers",
            setting="simulated slice with process hosts; every copy is on this machine, so look at the CPU",
            baseline=THEIRS,
            lines=lines(contenders, found),
            budgets=(
                Budget("copies that the client sent", copies, 1.1),
                # The list of files goes along with the question what a host has of them.
                Budget("sent again, nothing having changed", again, 0.1, unit="MB"),
                Budget(f"to each, of {PROJECT_MB} MB with one new MB", changed / hosts, 1.1, unit="MB"),
                Budget("client CPU, of scp's", found[OURS].cpu_s / found[THEIRS].cpu_s, 0.334),
            ),
        )
    ]


def _with_new_file(file: Path, argv: list[str]) -> list[str]:
    return ["sh", "-c", f"head -c {SIZE} /dev/urandom > {file} && exec {shlex.join(argv)}"]


def _scp(folder: Path, info: SimInfo) -> Contender:
    nodes = control.state(info)["nodes"]
    farm = folder / "scp.json"
    farm.write_text(json.dumps({"hosts": [each["ipAddress"] for each in nodes[0]["networkEndpoints"]]}))
    options = [f"-P{info.ssh_port}", "-i", str(folder / "ssh_ed25519"), "-F/dev/null", "-oUser=tpuctl"]
    options += ["-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null", "-oLogLevel=ERROR"]
    file = folder / "theirs.bin"
    argv = [sys.executable, str(CLIENT), str(farm), str(file), "theirs.bin", *options]
    return Contender(THEIRS, _with_new_file(file, argv), single_process=False)


def _tpuctl(folder: Path, env: dict[str, str]) -> Contender:
    file = folder / "ours.bin"
    return Contender(OURS, _with_new_file(file, [TPUCTL, "cp", str(file), "big:ours.bin"]), env)


def _sent_copies(folder: Path, env: dict[str, str]) -> tuple[float, float]:
    """How often the client sent a file for all workers, and the MB it sent when asked once more."""
    file = folder / "once.bin"
    file.write_bytes(os.urandom(SIZE))
    return _sent(folder, env, file) * 1e6 / SIZE, _sent(folder, env, file)


def _sent_for_one_change(folder: Path, env: dict[str, str]) -> float:
    """The MB that a project costs after one of its files changed."""
    project = folder / "project"
    project.mkdir()
    for number in range(PROJECT_MB):
        (project / f"part-{number:03d}.bin").write_bytes(os.urandom(1_000_000))
    _sent(folder, env, project)
    (project / "part-050.bin").write_bytes(os.urandom(1_000_000))
    return _sent(folder, env, project)


def _sent(folder: Path, env: dict[str, str], what: Path) -> float:
    """The MB that left the client for one `tpuctl cp`, from what it says itself."""
    # Into a directory: a second copy of a directory to its own name would go into it, as with cp -r.
    argv = [TPUCTL, "cp", str(what), "big:."]
    done = subprocess.run(argv, env={**os.environ, **env}, cwd=folder, capture_output=True, text=True)
    said = re.findall(r"ha(?:ve|s) it: sent ([0-9.]+) (B|KiB|MiB|GiB)", done.stderr)
    if done.returncode != 0 or not said:
        raise BenchError(f"{OURS}: {done.stderr.strip()[-400:]}")
    number, unit = said[-1]
    return float(number) * UNITS[unit] / 1e6
