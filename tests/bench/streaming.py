"""Much output from many hosts, every line prefixed, into a file."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from tests.bench import peers
from tests.bench.farms import SSHD, sshd_farm
from tests.bench.harness import Budget, Check, Plan, Report, compare, lines, pinned, scratch

HOSTS = 64
HOST_BYTES = 5_000_000
LINE_BYTES = 94
OURS = "tpuctl, session off"


def measure(plan: Plan) -> list[Report]:
    """The hosts send as fast as they are read; the client is held to one CPU."""
    if SSHD is None:
        return []
    count, per_host = plan.hosts(HOSTS), HOST_BYTES // LINE_BYTES
    with scratch() as folder, sshd_farm(folder, count, cpu=1) as farm, pinned(0):
        _write_logs(folder, farm.hosts, per_host)
        large = f"cat {folder}/$(echo $SSH_CONNECTION | cut -d ' ' -f 3).log"
        file = farm.save(folder / "farm.json")
        check = _counts(count * per_host)
        half, fifth = (
            peers.tpuctl(
                file,
                f"{large} | head -n {per_host // part}",
                _counts(count * (per_host // part)),
                name=f"tpuctl, {word} of it",
            )
            for part, word in ((2, "half"), (5, "a fifth"))
        )
        found = {
            "ssh": peers.ssh_processes(farm, file, large, check),
            "tpuctl": peers.tpuctl(file, large, check),
            "pdsh": peers.pdsh(farm, count, large, check),
        }
        contenders = [each for each in found.values() if each is not None]
        medians = compare([half, fifth, *contenders], plan.rounds)
    peak_mb = medians[OURS].peak_mb
    # All windows and queues have been full after a third of it: from then on it is to stay as it is.
    budgets = [
        Budget("memory, of that for half of the stream", peak_mb / medians[half.name].peak_mb, 1.15),
        Budget("memory, of that for a fifth of the stream", peak_mb / medians[fifth.name].peak_mb, 1.25),
    ]
    if found["pdsh"] is not None:
        ratio = medians["pdsh"].cpu_s / medians[OURS].cpu_s
        budgets.insert(0, Budget("CPU, times less than pdsh", ratio, 10.0, at_least=True))
    return [
        Report(
            title=f"Streaming {count} hosts x {HOST_BYTES // 1_000_000} MB",
            setting="lines of 94 bytes, each prefixed, into a file; client on CPU 0, real sshd on CPU 1",
            baseline=contenders[0].name,
            lines=lines(contenders, medians),
            budgets=tuple(budgets),
            missing=tuple(f"{name} is not installed" for name, each in found.items() if each is None),
        )
    ]


def _write_logs(folder: Path, hosts: list[str], count: int) -> None:
    """A log per host, under its address, no two lines alike."""
    for host in hosts:
        text = "".join(
            f"{host} step {i:07d} loss 3.14159 ".ljust(LINE_BYTES - 1, ".") + "\n" for i in range(count)
        )
        (folder / f"{host}.log").write_text(text)


def _counts(expected: int) -> Check:
    """At least so many lines; they are 320 MB, which are read piece by piece."""

    def check(out: BinaryIO) -> bool:
        return sum(piece.count(b"\n") for piece in iter(lambda: out.read(1 << 20), b"")) >= expected

    return check
