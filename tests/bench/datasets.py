"""Many small files into a bucket: tpuctl makes shards with checksums; tar and gcloud send one stream."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from tests.bench.gcloud import plain_python
from tests.bench.harness import Budget, Contender, Plan, Report, compare, lines, scratch
from tests.bench.startup import TPUCTL, sim_environment
from tpuctl.datasets.plan import SHARD_MB
from tpuctl.sim.server import control
from tpuctl.sim.server.environment import environment
from tpuctl.sim.server.options import SimOptions

FILES = 200_000
FILE_BYTES = 1_000
THEIRS, OURS, FEWER = "tar | gcloud storage cp -", "tpuctl data pack", "tpuctl data pack, a tenth of the files"


def measure(plan: Plan) -> list[Report]:
    """Each round into a new prefix, so that all has to be sent; needs gcloud."""
    if shutil.which("gcloud") is None:
        return []
    files = FILES // 100 if plan.quick else FILES
    with scratch() as folder, plain_python():
        _make(folder / "many", files)
        _make(folder / "fewer", files // 10)
        info = control.up(folder / "sim", SimOptions(delays="instant"))
        try:
            ours = sim_environment(folder)
            theirs = {**environment(info), "HOME": str(folder), "CLOUDSDK_CONFIG": str(folder / "gcloud")}
            send = f"tar -C {shlex.quote(str(folder))} -cf - many | gcloud -q storage cp - "
            contenders = [
                Contender(
                    THEIRS,
                    ["bash", "-c", f"set -o pipefail; {send} gs://sim-bucket/all-$$.tar"],
                    theirs,
                    single_process=False,
                ),
                Contender(OURS, _pack(folder / "many", SHARD_MB), ours),
                Contender(FEWER, _pack(folder / "fewer", SHARD_MB // 10), ours),
            ]
            compare(contenders, 1)
            found = compare(contenders, max(1, plan.rounds // 2))
        finally:
            control.down(folder / "sim")
    return [
        Report(
            title=f"{files:,} files of {FILE_BYTES // 1000} kB into a bucket",
            setting="simulated bucket on this machine, which takes part of the CPU; from a warm page cache",
            baseline=THEIRS,
            lines=lines(contenders, found),
            budgets=(
                Budget(
                    "wall, of tar and gcloud's in files and bytes per second",
                    found[THEIRS].wall_s / found[OURS].wall_s,
                    1.0,
                    at_least=True,
                ),
                Budget(
                    "peak memory, of that with a tenth of the files",
                    found[OURS].peak_mb / found[FEWER].peak_mb,
                    1.5,
                ),
            ),
        )
    ]


def _make(folder: Path, files: int) -> None:
    for number in range(files):
        below = folder / f"{number % 200:03d}"
        if number < 200:
            below.mkdir(parents=True)
        (below / f"{number:06d}.bin").write_bytes(os.urandom(FILE_BYTES))


def _pack(folder: Path, shard_mb: int) -> list[str]:
    """Each folder makes as many shards as the other: several are sent at once, each with its buffers."""
    words = f"data pack {shlex.quote(str(folder))} gs://sim-bucket/pack-$$ --shard-size {shard_mb}"
    return ["sh", "-c", f"exec {TPUCTL} {words}"]
