"""What a large slice costs the machine of its user: CPU of the client, which other load changes little."""

from __future__ import annotations

import getpass
import os
import shutil

from tests.bench.gcloud import ZONE, gcloud_environment, plain_python
from tests.bench.harness import Budget, Contender, Line, Plan, Report, Sample, execute, scratch
from tests.bench.startup import TPUCTL, sim_environment
from tpuctl.sim.server import control
from tpuctl.sim.server.options import SimOptions

THEIRS, EXEC = "gcloud … ssh --worker=all", "tpuctl exec -- true"
UP, RUN = "tpuctl up", "tpuctl run -- true"
UP_CPU_S, RUN_CPU_S = 5.0, 10.0
CODE_BYTES = 20 << 20


def measure(plan: Plan) -> list[Report]:
    """256 hosts, one round: each takes minutes, most of them the hosts' own."""
    if shutil.which("gcloud") is None or os.geteuid() != 0:
        return []
    accelerator, hosts = ("v4-32", 4) if plan.quick else ("v4-2048", 256)
    found: dict[str, Sample] = {}
    with scratch(in_memory=True) as folder, plain_python():
        info = control.up(folder / "sim", SimOptions(delays="instant"))
        try:
            ours = sim_environment(folder)
            (folder / "work").mkdir()
            (folder / "work/data").write_bytes(os.urandom(CODE_BYTES))
            run = f'cd {folder}/work && exec "$0" run --no-checkpoint -- true'
            contenders = [
                Contender(UP, [TPUCTL, "up", accelerator, "big", "--spot", "--pay"], ours),
                Contender(EXEC, [TPUCTL, "exec", "big", "--", "true"], ours),
                Contender(RUN, ["sh", "-c", run, TPUCTL], ours),
            ]
            for contender in contenders:
                found[contender.name] = execute(contender)
            node = next(each["name"].rsplit("/", 1)[-1] for each in control.state(info)["nodes"])
            words = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", f"{getpass.getuser()}@{node}"]
            flags = ["--worker=all", f"--zone={ZONE}", "--command=true"]
            theirs = Contender(THEIRS, [*words, *flags], gcloud_environment(info, folder))
            found[THEIRS] = execute(theirs)
        finally:
            control.down(folder / "sim")
    per_host_ms = 1000 * found[RUN].cpu_s / hosts
    return [
        Report(
            title=f"A slice of {hosts} hosts",
            setting="process hosts, files in memory, code of 20 MB; wall time is mostly that of the hosts",
            baseline=THEIRS,
            lines=tuple(Line(name, found[name].wall_s, found[name].cpu_s) for name in (THEIRS, EXEC, UP, RUN)),
            budgets=(
                Budget(f"CPU of {UP}", found[UP].cpu_s, UP_CPU_S, unit="s"),
                Budget(f"CPU of {RUN} ({per_host_ms:.0f} ms per host)", found[RUN].cpu_s, RUN_CPU_S, unit="s"),
            ),
        )
    ]
