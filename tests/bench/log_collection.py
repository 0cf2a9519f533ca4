"""Collecting the logs of a run from every worker of a slice, beside gcloud fetching the same."""

from __future__ import annotations

import filecmp
import getpass
import itertools
import os
import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import BinaryIO

from tests.bench.gcloud import ZONE, gcloud_environment, must, plain_python
from tests.bench.harness import BenchError, Budget, Contender, Plan, Report, compare, lines, scratch
from tests.bench.startup import TPUCTL, sim_environment
from tpuctl.sim.server import control
from tpuctl.sim.server.options import SimOptions

HOST_BYTES = 5_000_000
THEIRS, OURS = "gcloud … ssh --worker=all", "tpuctl watch once"
WRITTEN_WITHIN_S = 120.0


def measure(plan: Plan) -> list[Report]:
    """32 hosts; needs gcloud, and port 22 of loopback addresses, which takes root."""
    if shutil.which("gcloud") is None or os.geteuid() != 0:
        return []
    accelerator, hosts = ("v4-32", 4) if plan.quick else ("v4-256", 32)
    with scratch() as folder, plain_python():
        log = _write_log(folder)
        whole = log.stat().st_size * hosts
        code = folder / "code"
        code.mkdir()
        info = control.up(folder / "sim", SimOptions(delays="instant"))
        try:
            ours = sim_environment(folder)
            must([TPUCTL, "up", accelerator, "big", "--spot", "--pay"], ours, folder)
            program = ["--no-checkpoint", "--name", "writes", "--", "sh", "-c", f"cat {log}; sleep 3000"]
            must([TPUCTL, "run", "-d", "--on", "big", *program], ours, code)
            theirs = gcloud_environment(info, folder)
            node = next(each["name"].rsplit("/", 1)[-1] for each in control.state(info)["nodes"])
            kept = _wait_until_kept(folder, ours, whole)

            def has_all(out: BinaryIO) -> bool:
                return sum(map(len, iter(lambda: out.read(1 << 20), b""))) >= whole

            def is_kept(_out: BinaryIO) -> bool:
                logs = list(kept.glob("1/worker-*.stdout.log"))
                return len(logs) == hosts and all(filecmp.cmp(log, each, shallow=False) for each in logs)

            # A pass has so many seconds for the hosts of a run, and the next one goes on.
            logs = f"{kept}/1/worker-*.stdout.log"
            collect = (
                f"rm -r {kept}; until [ $(du -bc {logs} | tail -1 | cut -f1) -ge {whole} ]; "
                f"do {TPUCTL} watch once || exit 1; done"
            )
            flags = ["--worker=all", f"--zone={ZONE}", f"--command=cat {log}"]
            fetch = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", f"{getpass.getuser()}@{node}", *flags]
            contenders = [
                Contender(THEIRS, fetch, theirs, has_all, single_process=False),
                Contender(OURS, ["sh", "-c", collect], ours, is_kept),
            ]
            compare(contenders, 1)  # keys, host keys and the agent are put in place once
            found = compare(contenders, plan.rounds)
            lost = whole - _shown_after_preemption(node, ours, folder)
        finally:
            control.down(folder / "sim")
    cpu = found[OURS].cpu_s / found[THEIRS].cpu_s
    return [
        Report(
            title=f"Collecting {hosts} logs x {HOST_BYTES // 1_000_000} MB, then a preemption without warning",
            setting="simulated slice with process hosts on port 22; ours keeps a file a worker, with times",
            baseline=THEIRS,
            lines=lines(contenders, found),
            budgets=(
                Budget("CPU, of gcloud's with its ssh processes", cpu, 0.8),
                Budget("peak memory of a pass", found[OURS].peak_mb, 250.0, unit=" MB"),
                Budget("lost of what was collected", float(lost), 0.0, unit=" bytes"),
            ),
        )
    ]


def _write_log(folder: Path) -> Path:
    """What every worker writes, as a trainer does: no two lines alike, and numbers that no one could foresee;
    `nobody`, as whom the hosts' programs run, may read it."""
    log, digits = folder / "five.log", random.Random(1)
    with log.open("w") as file:
        for step in itertools.takewhile(lambda _: file.tell() < HOST_BYTES, itertools.count()):
            at = f"I1123 08:{step // 60 % 60:02d}:{step % 60:02d}.{digits.randrange(10**6):06d}"
            loss, norm, pace = 2 + digits.random(), digits.random(), digits.uniform(90_000, 99_000)
            said = f"step={step} loss={loss:.6f} grad_norm={norm:.5f} tokens/s={pace:.1f}"
            file.write(f"{at} train.py:211] {said}\n")
    folder.chmod(0o755)
    return log


def _wait_until_kept(folder: Path, env: dict[str, str], whole: int) -> Path:
    """Where passes keep the output of the run, once its programs have written everything."""
    until = time.monotonic() + WRITTEN_WITHIN_S
    while time.monotonic() < until:
        must([TPUCTL, "watch", "once"], env, folder)
        for kept in folder.glob("**/runs/writes"):
            if sum(path.stat().st_size for path in kept.glob("1/worker-*.stdout.log")) >= whole:
                return kept
        time.sleep(1.0)
    raise BenchError(f"the workers' logs did not come within {WRITTEN_WITHIN_S:.0f} s")


def _shown_after_preemption(node: str, env: dict[str, str], folder: Path) -> int:
    """Bytes that `tpuctl logs` has of the first attempt when its hosts are gone, each line once a worker."""
    must([TPUCTL, "sim", "preempt", node], env, folder)
    must([TPUCTL, "watch", "once"], env, folder)
    workers = []
    for path in folder.glob("**/runs/writes/1/worker-*.stdout.log"):
        number = path.name.split(".")[0].removeprefix("worker-")
        shown = subprocess.run(
            [TPUCTL, "logs", "writes", "--attempt", "1", "--worker", number],
            env={**os.environ, **env},
            cwd=folder,
            capture_output=True,
            check=True,
        ).stdout
        prefix = f"big-{number} │ ".encode()
        workers.append(len(shown) - shown.count(b"\n") * len(prefix))
    return sum(workers)
