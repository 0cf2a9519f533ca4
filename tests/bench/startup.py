"""What tpuctl costs before it does anything: its help, and one read of the fleet beside the real gcloud."""

from __future__ import annotations

import json
import os
import shutil
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.bench.harness import Budget, Contender, Plan, Report, compare, lines, scratch, unmeasured
from tpuctl.sim.server import control
from tpuctl.sim.server.environment import environment
from tpuctl.sim.server.info import SimInfo
from tpuctl.sim.server.options import SimOptions

TPUCTL = str(Path(sys.executable).with_name("tpuctl"))
NODES = 20
IMPORT_TYPER = 'python -c "import typer"'


def measure(plan: Plan) -> list[Report]:
    """Both are about CPU; a person feels it at every command."""
    return [_help(plan), _dry_runs(plan), _list(plan)]


def measure_interpreter(plan: Plan) -> list[Report]:
    """What any Python program costs here: the floor under all others."""
    contenders = [
        Contender("python -c pass", [sys.executable, "-c", "pass"]),
        Contender("python -I -S -c pass", [sys.executable, "-I", "-S", "-c", "pass"]),
    ]
    return [
        Report(
            title="Interpreter",
            setting="an empty program, with and without the environment's site-packages",
            baseline=contenders[0].name,
            lines=lines(contenders, compare(contenders, 3 * plan.rounds)),
        )
    ]


def _help(plan: Plan) -> Report:
    typer = Contender(IMPORT_TYPER, [sys.executable, "-c", "import typer"])
    least = Contender("import typer, msgspec", [sys.executable, "-c", "import typer, msgspec"])
    ours = [
        Contender(f"tpuctl {words}", [TPUCTL, *words.split()], check=lambda out: b"Usage: tpuctl" in out.read())
        for words in ("--help", "env --help", "disk --help")
    ]
    contenders = [typer, least, *ours]
    found = compare(contenders, 3 * plan.rounds)
    root, *nouns = ours
    ratio = found[root.name].cpu_s / found[typer.name].cpu_s
    budgets = [Budget("CPU of the help, of importing typer", ratio, 1.1)]
    for each in nouns:
        budgets += [
            Budget(f"CPU of {each.name}, of {base.name}", found[each.name].cpu_s / found[base.name].cpu_s, 1.1)
            for base in (root, least)
        ]
    return Report(
        title="Help",
        setting="the libraries that tpuctl's command line and its options are made with, and tpuctl's help",
        baseline=typer.name,
        lines=lines(contenders, found),
        budgets=tuple(budgets),
    )


def _dry_runs(plan: Plan) -> Report:
    """What a person waits for before anything is asked for: prices, zones and quotas are read for it."""
    place = "--spot --zone us-central2-b --pay --dry-run"
    words = (f"up v4-32 {place}", f"run --up v4-8 --no-checkpoint {place} -- hostname")
    typer = Contender(IMPORT_TYPER, [sys.executable, "-c", "import typer"])
    with scratch() as folder:
        (folder / "code").mkdir()
        control.up(folder / "sim", SimOptions(delays="instant"))
        try:
            ours = [
                Contender(
                    f"tpuctl {each.split()[0]} --dry-run",
                    ["sh", "-c", f"cd {folder}/code && exec {TPUCTL} {each}"],
                    sim_environment(folder),
                    check=lambda out: b"would ask for" in out.read(),
                )
                for each in words
            ]
            compare(ours, 1)  # which writes caches
            found = compare([typer, *ours], 3 * plan.rounds)
        finally:
            control.down(folder / "sim")
    budgets = [
        Budget(f"CPU of {each.name}, of importing typer", found[each.name].cpu_s / found[typer.name].cpu_s, 5.0)
        for each in ours
    ]
    setting = "of a slice, and of a run with a slice of its own; one simulator"
    return Report("Dry runs", setting, typer.name, lines([typer, *ours], found), tuple(budgets))


def _list(plan: Plan) -> Report:
    gcloud = Contender(
        "gcloud … tpu-vm list",
        ["gcloud", "compute", "tpus", "tpu-vm", "list", "--zone=-"],
        check=lambda out: out.read().count(b"READY") == NODES,
    )
    ours = Contender(
        "tpuctl ls --json", [TPUCTL, "ls", "--json"], check=lambda out: len(json.load(out)) == NODES
    )
    setting = f"all zones of one simulator with {NODES} nodes"
    return _beside_gcloud(plan, "List", setting, gcloud, ours, 0.8, _create_nodes)


def measure_disk(plan: Plan) -> list[Report]:
    """A command that changes Compute Engine, and imports google-cloud-compute for that."""
    words = "disks create d-$$ --size=10 --type=pd-balanced --zone=us-central2-b"
    gcloud = Contender("gcloud compute disks create", ["sh", "-c", f"exec gcloud compute {words}"])
    words = "disk create d-$$ --size 10 --type pd-balanced --zone us-central2-b"
    ours = Contender("tpuctl disk create", ["sh", "-c", f"exec {TPUCTL} {words}"])
    setting = "an empty disk, in a simulator that makes it at once"
    return [_beside_gcloud(plan, "A disk made", setting, gcloud, ours, 2.0)]


def _beside_gcloud(
    plan: Plan,
    title: str,
    setting: str,
    gcloud: Contender,
    ours: Contender,
    limit: float,
    prepare: Callable[[SimInfo], None] = lambda _: None,
) -> Report:
    """Both against a simulator of their own."""
    if shutil.which("gcloud") is None:
        return unmeasured(title, "the real gcloud is needed on PATH", "gcloud is not installed", plan)
    with scratch() as folder:
        info = control.up(folder / "sim", SimOptions(delays="instant"))
        try:
            prepare(info)
            env = {**environment(info), "CLOUDSDK_CONFIG": str(folder / "gcloud"), "HOME": str(folder)}
            contenders = [replace(gcloud, env=env), replace(ours, env=sim_environment(folder))]
            compare(contenders, 1)  # both write caches the first time
            found = compare(contenders, 3 * plan.rounds)
        finally:
            control.down(folder / "sim")
    ratio = found[ours.name].cpu_s / found[gcloud.name].cpu_s
    budget = Budget(f"CPU of {ours.name}, of {gcloud.name}", ratio, limit)
    return Report(title, setting, gcloud.name, lines(contenders, found), (budget,))


def _create_nodes(info: SimInfo) -> None:
    body = json.dumps({"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}).encode()
    parent = f"{info.http}/v2/projects/{info.project}/locations/us-central2-b"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for index in range(NODES):
        request = urllib.request.Request(
            f"{parent}/nodes?nodeId=n{index}",
            data=body,
            headers={"authorization": f"Bearer {info.token}", "content-type": "application/json"},
        )
        opener.open(request, timeout=60).read()


def sim_environment(folder: Path) -> dict[str, str]:
    """Variables with which tpuctl uses the simulator below `folder`."""
    return {"TPUCTL_STATE_DIR": str(folder), "TPUCTL_PROFILE": "sim", "PATH": os.environ["PATH"]}
