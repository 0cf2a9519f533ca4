"""From an edit to a program that has run again on four workers: tpuctl dev beside rsync in a shell loop."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from tests.bench.gcloud import must, plain_python
from tests.bench.harness import BenchError, Budget, Line, Plan, Report, scratch, unmeasured
from tests.bench.startup import TPUCTL, sim_environment
from tpuctl.sim.server import control
from tpuctl.sim.server.info import SimInfo
from tpuctl.sim.server.options import SimOptions

HOSTS = 4
FILES, FILE_BYTES = 100, 4000
EDITS = 5
REST_S, STEP_S = 1.0, 0.06
"""From the end of one edit to the next, each time longer: both look at intervals, and edits that always came at
the same point of one would be luck."""
LIMIT_S = 60.0
OURS, THEIRS = "tpuctl dev", "rsync and ssh in a loop"
PROGRAM = 'import os\nprint("run-{number}", os.getcwd(), flush=True)\n'
LOOP = """
touch -d @0 "$STAMP"
while :; do
  if [ -n "$(find . -newer "$STAMP" | head -n 1)" ]; then
    touch "$STAMP"
    for host in $ADDRESSES; do
      { rsync -a --delete -e "ssh $OPTIONS" ./ "$host:theirs/" &&
        ssh $OPTIONS "$host" 'cd theirs && python3 train.py'; } &
    done
    wait
  fi
  sleep 0.3
done
"""
"""Looks half as often as tpuctl, but sends at once what may be half a save; works on all hosts at once, and
keeps its connections (ControlPersist)."""


def measure(plan: Plan) -> list[Report]:
    """On port 22, which takes root."""
    title = f"An edit, until a program has run again on {HOSTS} workers"
    setting = f"{FILES} files of {FILE_BYTES} bytes, of which one changes; simulated slice with process hosts"
    if os.geteuid() != 0 or shutil.which("rsync") is None:
        return [unmeasured(title, setting, "it takes root, and rsync", plan)]
    seconds: dict[str, list[float]] = {OURS: [], THEIRS: []}
    cpu_s = dict.fromkeys(seconds, 0.0)
    edits = 1 if plan.quick else EDITS
    with scratch() as folder, plain_python():
        info = control.up(folder / "sim", SimOptions(delays="instant"))
        try:
            env = sim_environment(folder)
            must([TPUCTL, "up", "v4-32", "big", "--spot", "--pay"], env, folder)
            for _ in range(plan.rounds):
                for name, argv, more in (_ours(), _theirs(folder, info)):
                    found, used_s = _edit(folder / name.split()[0], argv, {**env, **more}, edits)
                    seconds[name] += found
                    cpu_s[name] += used_s / plan.rounds / edits
        finally:
            control.down(folder / "sim")
    rows = tuple(Line(name, median(found), cpu_s[name]) for name, found in seconds.items())
    ratio = median(seconds[OURS]) / median(seconds[THEIRS])
    budgets = (
        Budget("seconds from the edit", median(seconds[OURS]), 2.0, unit="s"),
        Budget("time, of rsync's", ratio, 1.0),
    )
    return [Report(title, setting, THEIRS, rows, budgets)]


def _ours() -> tuple[str, list[str], Mapping[str, str]]:
    return OURS, [TPUCTL, "dev", "big", "--sync", ".", "--exec", "python3 train.py"], {}


def _theirs(folder: Path, info: SimInfo) -> tuple[str, list[str], Mapping[str, str]]:
    (node,) = control.state(info)["nodes"]
    options = f"-p{info.ssh_port} -i {folder}/ssh_ed25519 -F/dev/null -oUser=tpuctl -oStrictHostKeyChecking=no"
    options += " -oUserKnownHostsFile=/dev/null -oLogLevel=ERROR"
    options += f" -oControlMaster=auto -oControlPath={folder}/%h -oControlPersist=20"
    addresses = " ".join(each["ipAddress"] for each in node["networkEndpoints"])
    variables = {"STAMP": f"{folder}/stamp", "ADDRESSES": addresses, "OPTIONS": options}
    return THEIRS, ["sh", "-c", LOOP], variables


def _edit(project: Path, argv: list[str], env: Mapping[str, str], edits: int) -> tuple[list[float], float]:
    """Seconds of each edit, and those of a CPU for all of them."""
    shutil.rmtree(project, ignore_errors=True)
    project.mkdir()
    for number in range(FILES):
        (project / f"part_{number}.py").write_text("x" * FILE_BYTES)
    found = []
    with _running(project, argv, env) as (process, output):
        _change(project, output, 0)
        before = _cpu_s(process.pid)
        for number in range(1, edits + 1):
            time.sleep(REST_S + STEP_S * number)
            found.append(_change(project, output, number))
        return found, _cpu_s(process.pid) - before


@contextmanager
def _running(
    project: Path, argv: list[str], env: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    output = project.with_suffix(".out")
    with output.open("wb") as file:
        process = subprocess.Popen(
            argv, cwd=project, env={**os.environ, **env}, stdout=file, stderr=file, start_new_session=True
        )
        try:
            yield process, output
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def _change(project: Path, output: Path, number: int) -> float:
    """Seconds from the edit to the last worker's output. Raises BenchError."""
    (project / "train.new").write_text(PROGRAM.format(number=number))
    began = time.monotonic()
    (project / "train.new").rename(project / "train.py")
    while time.monotonic() < began + LIMIT_S:
        said = output.read_text(errors="replace").splitlines()
        if len({line.split(f"run-{number} ")[1] for line in said if f"run-{number} " in line}) == HOSTS:
            return time.monotonic() - began
        time.sleep(0.01)
    raise BenchError(f"{project.name}: not all of {HOSTS} workers ran it: {output.read_text()[-600:]}")


def _cpu_s(pid: int) -> float:
    """Of a process and its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
