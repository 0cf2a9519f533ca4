"""One command on many hosts from a cold start: connect, authenticate, run, show, leave."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.bench import peers
from tests.bench.farms import SSHD, Farm, cheap_farm, sshd_farm
from tests.bench.harness import (
    Budget,
    Check,
    Contender,
    Plan,
    Report,
    Sample,
    compare,
    lines,
    pinned,
    scratch,
)

SSH = "one ssh process per worker"
OURS = "tpuctl, session off"
SIZES = (64, 256)
WALL_LIMITS = (2.5, 4.0)
SSHD_HOSTS = 64


def measure(plan: Plan) -> list[Report]:
    """Against a server so cheap that the client, held to one CPU, is the limit."""
    sizes = [plan.hosts(size) for size in SIZES]
    with scratch() as folder, cheap_farm(folder, max(sizes)) as farm, pinned(0):
        found = []
        for size in sizes:
            contenders, missing = _contenders(farm, folder, size, "hostname")
            found.append((contenders, missing, compare(contenders, plan.rounds)))
    reports = []
    for index, (contenders, missing, medians) in enumerate(found):
        budgets = _wall_budgets(medians, sizes[index], WALL_LIMITS[index])
        if index:
            budgets += _growth_budgets(found[0][2], medians, sizes)
        reports.append(
            Report(
                title=f"Cold command on {sizes[index]} hosts, cheap server",
                setting="client on CPU 0; one asyncssh server on CPU 1 answers by itself",
                baseline=SSH,
                lines=lines(contenders, medians),
                budgets=budgets,
                missing=missing,
            )
        )
    return reports


def measure_sshd(plan: Plan) -> list[Report]:
    """Against OpenSSH's server, everything on all CPUs; the session needs hosts that execute."""
    size = plan.hosts(SSHD_HOSTS)
    if SSHD is None:
        return []
    with scratch() as folder, sshd_farm(folder, size) as farm:
        command = "echo host-$SSH_CONNECTION"
        contenders, missing = _contenders(farm, folder, size, command)
        held = peers.tpuctl(farm.save(folder / "session.json"), command, _says(size), session=True)
        contenders.insert(2, held)
        compare([held], 1)  # the agent is put on a host once
        medians = compare(contenders, plan.rounds)
    return [
        Report(
            title=f"Cold command on {size} hosts, real sshd",
            setting="client and servers share the machine, so the servers are most of the wall time",
            baseline=SSH,
            lines=lines(contenders, medians),
            budgets=(_fastest(medians, size, held.name),),
            missing=missing,
        )
    ]


def _says(count: int) -> Check:
    return lambda out: out.read().count(b"host-") == count


def _contenders(farm: Farm, folder: Path, size: int, command: str) -> tuple[list[Contender], tuple[str, ...]]:
    check = _says(size)
    file = farm.save(folder / f"farm-{size}.json", size)
    found: dict[str, Contender | None] = {
        SSH: peers.ssh_processes(farm, file, command, check),
        OURS: peers.tpuctl(file, command, check),
        "asyncssh": peers.asyncssh_client(file, command, check),
        "parallel-ssh": peers.parallel_ssh(file, command, check),
        "clush": peers.clush(farm, size, command, check),
        "pdsh": peers.pdsh(farm, size, command, check),
    }
    if size <= SSHD_HOSTS:
        found["ansible"] = peers.ansible_raw(farm, size, command, check)
    return (
        [each for each in found.values() if each is not None],
        tuple(f"{name} is not installed" for name, each in found.items() if each is None),
    )


def _wall_budgets(medians: Mapping[str, Sample], size: int, limit: float) -> tuple[Budget, ...]:
    ratio = medians[SSH].wall_s / medians[OURS].wall_s
    return (
        Budget(f"{size} hosts: wall, times faster than ssh processes", ratio, limit, at_least=True),
        _fastest(medians, size),
    )


def _fastest(medians: Mapping[str, Sample], size: int, *ignored: str) -> Budget:
    peer = min((name for name in medians if name not in (OURS, *ignored)), key=lambda n: medians[n].wall_s)
    ratio = medians[peer].wall_s / medians[OURS].wall_s
    return Budget(f"{size} hosts: wall of the fastest peer ({peer})", ratio, 1.0, at_least=True)


def _growth_budgets(
    few: Mapping[str, Sample], many: Mapping[str, Sample], sizes: list[int]
) -> tuple[Budget, ...]:
    hosts = sizes[1] - sizes[0]

    def per_host_ms(name: str) -> float:
        return 1000 * (many[name].cpu_s - few[name].cpu_s) / hosts

    ours, theirs = per_host_ms(OURS), per_host_ms(SSH)
    growth = (many[OURS].peak_mb - few[OURS].peak_mb) / hosts
    return (
        Budget(f"CPU per further host, of ssh's ({ours:.2f} of {theirs:.2f} ms)", ours / theirs, 0.334),
        Budget("memory per further host", growth, 0.15, unit="MB"),
    )
