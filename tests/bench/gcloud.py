"""End to end beside the real gcloud: one command on every worker of one slice of the same simulator."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tests.bench.harness import BenchError, Budget, Contender, Plan, Report, compare, lines, scratch
from tests.bench.startup import TPUCTL, sim_environment
from tpuctl.sim.server import control
from tpuctl.sim.server.environment import environment
from tpuctl.sim.server.info import SimInfo
from tpuctl.sim.server.options import SimOptions

ZONE = "us-central2-b"
THEIRS, OURS = "gcloud … ssh --worker=all", "tpuctl exec"


def measure(plan: Plan) -> list[Report]:
    """32 hosts; needs gcloud, and port 22 of loopback addresses, which takes root."""
    if shutil.which("gcloud") is None or os.geteuid() != 0:
        return []
    accelerator, hosts = ("v4-32", 4) if plan.quick else ("v4-256", 32)
    with scratch() as folder, plain_python():
        info = control.up(folder / "sim", SimOptions(delays="instant"))
        try:
            ours = sim_environment(folder)
            must([TPUCTL, "up", accelerator, "big", "--spot", "--pay"], ours, folder)
            theirs = gcloud_environment(info, folder)
            node = next(each["name"].rsplit("/", 1)[-1] for each in control.state(info)["nodes"])
            flags = ["--worker=all", f"--zone={ZONE}", "--command=echo host-${HOSTNAME##*-}"]
            login = f"{getpass.getuser()}@{node}"

            def answered(out: BinaryIO) -> bool:
                return out.read().count(b"host-") == hosts

            contenders = [
                Contender(
                    THEIRS,
                    ["gcloud", "compute", "tpus", "tpu-vm", "ssh", login, *flags],
                    theirs,
                    answered,
                    single_process=False,
                ),
                Contender(
                    OURS, [TPUCTL, "exec", "big", "--", "sh", "-c", "echo host-${HOSTNAME##*-}"], ours, answered
                ),
            ]
            compare(contenders, 1)  # keys, host keys and the agent are put in place once
            found = compare(contenders, plan.rounds)
        finally:
            control.down(folder / "sim")
    cpu = found[OURS].cpu_s / found[THEIRS].cpu_s
    wall = found[THEIRS].wall_s / found[OURS].wall_s
    return [
        Report(
            title=f"One command on {hosts} workers, end to end",
            setting="simulated slice with process hosts on port 22; API calls, keys and session included",
            baseline=THEIRS,
            lines=lines(contenders, found),
            budgets=(
                Budget("CPU, of gcloud's with its ssh processes", cpu, 0.2),
                Budget("wall, times faster than gcloud", wall, 2.0, at_least=True),
            ),
        )
    ]


@contextmanager
def plain_python() -> Iterator[None]:
    """`python3` of the hosts is the interpreter itself: a version manager's wrapper takes 50 ms to start."""
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{sys.base_prefix}/bin{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before


def gcloud_environment(info: SimInfo, folder: Path) -> dict[str, str]:
    """Variables with which gcloud uses the simulator, `folder` being its home, with the key of its ssh."""
    (folder / ".ssh").mkdir(mode=0o700)
    key = ["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(folder / ".ssh/google_compute_engine")]
    must(key, {}, folder)
    return {**environment(info), "HOME": str(folder), "CLOUDSDK_CONFIG": str(folder / "gcloud")}


def must(argv: list[str], env: dict[str, str], folder: Path) -> None:
    done = subprocess.run(argv, env={**os.environ, **env}, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchError(f"{' '.join(argv[:3])}: {done.stderr.strip()[-400:]}")
