"""From a preemption to every worker running again: tpuctl in the foreground beside gcloud in a shell loop."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from tests.bench.gcloud import ZONE, gcloud_environment, must, plain_python
from tests.bench.harness import MEMORY, BenchError, Budget, Line, Plan, Report, cpu_of_tree, scratch, unmeasured
from tests.bench.startup import TPUCTL, sim_environment
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.model.timeouts import POLL_MAX_S
from tpuctl.sim.server import control
from tpuctl.sim.server.info import SimInfo
from tpuctl.sim.server.options import SimOptions

LIMIT_S = 180.0
PROGRAM = 'echo "up $TPUCTL_ATTEMPT:$TPUCTL_RANK:"; exec sleep 600'
OURS, PASSES, THEIRS = "tpuctl run", "tpuctl watch once, called by the clock", "gcloud in a shell loop"
RUNNING_S = 3.0
"""From hosts that are up to programs that run, on a quiet machine that all hosts share."""
MANY, CODE_BYTES, MANY_RUNNING_S = 64, 20_000_000, 10.0
"""Hosts, what each is sent, and as above. More are too much for two processors: a host's own work is 0.2 s of
one, so that the most would need half a minute, whatever the command does; the report tells how long."""
MOST = 256
MANY_SPACE = 4 * MANY * CODE_BYTES
"""The code as it was sent and as it lies there, on the hosts that are lost and on those that come."""
HOSTS = "what the hosts themselves do"
INTERVAL_S = 10.0
"""Between two passes here: cron's shortest is a minute, in which a benchmark would mostly wait."""
BESIDES_S = 10.0
"""What recovery may take besides the cloud's own time and, for a watchdog, two intervals."""
CRON = """
while :; do
  flock -n -o "$LOCK" "$TPUCTL" watch once >>"$LOG" 2>&1 </dev/null &
  sleep "$INTERVAL"
done
"""
"""As the crontab line of `watch install` does it: at fixed times, and none while one is at work."""

LOOP = """
set -u
queued="gcloud compute tpus queued-resources"
describe() { $queued describe "$1" --zone="$ZONE" --format='value(state.state)' 2>/dev/null; }
name=$FIRST number=1
while :; do
  case "$(describe "$name")" in
    ACTIVE) ;;
    SUSPENDED|FAILED)
      $queued delete "$name" --zone="$ZONE" --force --quiet
      while [ -n "$(describe "$name")" ]; do sleep 2; done
      number=$((number + 1)) name=loop-$number
      $queued create "$name" --zone="$ZONE" --node-id="$name" \\
        --accelerator-type="$TYPE" --runtime-version="$VERSION" --spot
      while [ "$(describe "$name")" != ACTIVE ]; do sleep 2; done
      gcloud compute tpus tpu-vm ssh "$LOGIN@$name" --zone="$ZONE" --worker=all \\
        --command='echo "up 2:${HOSTNAME##*-}:"; nohup sleep 600 >/dev/null 2>&1 &'
      ;;
  esac
  sleep 5
done
"""
"""As published scripts do it: describe, delete, create, start over ssh; with an interval as short as ours."""


@dataclass(frozen=True)
class Recovery:
    """Seconds from the loss being visible: until the re-create was called, until the hosts were up, until every
    worker ran; `hosts_s` are processor seconds of the hosts and the cloud while the hosts were up."""

    asked_s: float
    up_s: float
    running_s: float
    cpu_s: float
    hosts_s: float

    @property
    def cloud_s(self) -> float:
        """The cloud's own time: from the create to hosts that are up."""
        return self.up_s - self.asked_s


def measure(plan: Plan) -> list[Report]:
    """32 hosts; needs gcloud, and port 22 of loopback addresses, which takes root."""
    if shutil.which("gcloud") is None or os.geteuid() != 0:
        return []
    return [_measure_few(plan), _measure_many(plan)]


def _measure_few(plan: Plan) -> Report:
    accelerator, hosts = ("v4-32", 4) if plan.quick else ("v4-256", 32)
    rounds = max(1, plan.rounds // 2)
    ours = [_recover(accelerator, hosts, _start_ours) for _ in range(plan.rounds)]
    passes = [_recover(accelerator, hosts, _start_passes) for _ in range(rounds)]
    theirs = [_recover(accelerator, hosts, _start_theirs) for _ in range(rounds)]

    acknowledged, their_rest = (
        _middle(found, lambda each: each.running_s - each.up_s) for found in (ours, theirs)
    )
    asked = _middle(ours, lambda each: each.asked_s)
    watched = _middle(passes, lambda each: each.running_s - each.cloud_s)
    rows = tuple(
        Line(
            name,
            _middle(found, lambda each: each.running_s),
            _middle(found, lambda each: each.cpu_s),
        )
        for name, found in ((THEIRS, theirs), (PASSES, passes), (OURS, ours))
    )
    return Report(
        title=f"Recovery of {hosts} workers",
        setting="from a preemption, visible at once, to every worker running; no delays, files in memory; "
        f"gcloud and passes {rounds} times",
        baseline=THEIRS,
        lines=rows,
        budgets=(
            Budget("tpuctl: until the re-create is called, at most one poll", asked, POLL_MAX_S, unit="s"),
            Budget(
                f"tpuctl: from hosts up to every worker running (gcloud's loop: {their_rest:.2f} s)",
                acknowledged,
                RUNNING_S,
                unit="s",
            ),
            Budget(
                f"by passes each {INTERVAL_S:.0f} s: beyond the cloud's own time, two intervals and 10 s",
                watched,
                2 * INTERVAL_S + BESIDES_S,
                unit="s",
            ),
        ),
    )


def _measure_many(plan: Plan) -> Report:
    """The hosts share these processors: what they themselves do is the least that it can take here."""
    accelerator, hosts = ("v4-32", 4) if plan.quick else (f"v4-{8 * MANY}", MANY)
    title = f"Recovery of {hosts} workers with {CODE_BYTES // 10**6} MB of code"
    setting = "from hosts up to every worker running; no delays, files in memory"
    if not plan.quick and shutil.disk_usage(MEMORY).free < MANY_SPACE:
        return unmeasured(title, setting, f"needs {MANY_SPACE >> 30} GB free in {MEMORY}", plan)
    start = partial(_start_ours, code_bytes=CODE_BYTES)
    found = [_recover(accelerator, hosts, start) for _ in range(plan.rounds)]
    taken = _middle(found, lambda each: each.running_s - each.up_s)
    hosts_s = _middle(found, lambda each: each.hosts_s)
    least = hosts_s / (os.cpu_count() or 1)
    return Report(
        title=title,
        setting=f"{setting}; what {MOST} hosts themselves do would be {least * MOST / hosts:.0f} s here",
        baseline=HOSTS,
        lines=(Line(HOSTS, least, hosts_s), Line(OURS, taken, _middle(found, lambda each: each.cpu_s))),
        budgets=(
            Budget("from hosts up to every worker running", taken, MANY_RUNNING_S, unit="s"),
            Budget("that, of the hosts' own work on these processors", taken / least, 1.5),
        ),
    )


def _middle(found: Sequence[Recovery], what: Callable[[Recovery], float]) -> float:
    return median(what(each) for each in found)


class _Job:
    """A process whose output tells which workers run."""

    def __init__(self, argv: Sequence[str], env: dict[str, str], folder: Path) -> None:
        self._process = subprocess.Popen(
            argv,
            env={**os.environ, **env},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.append(line)

    def running(self, attempt: int, hosts: int) -> bool:
        text = "".join(self._lines)
        return all(f"up {attempt}:{worker}:" in text for worker in range(hosts))

    def stop(self) -> float:
        """Ends it; the CPU seconds of it and of what it had waited for."""
        os.killpg(self._process.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._reader.join()
        return usage.ru_utime + usage.ru_stime

    def tail(self) -> str:
        return "".join(self._lines[-5:])


class _Watchdog(_Job):
    """Passes at fixed times; what runs is told by the workers themselves, in a file that hosts share here."""

    def __init__(self, env: dict[str, str], folder: Path, told: Path) -> None:
        self._told = told
        super().__init__(["bash", "-c", CRON], env, folder)

    def running(self, attempt: int, hosts: int) -> bool:
        text = self._told.read_text()
        return all(f"up {attempt}:{worker}:" in text for worker in range(hosts))

    def tail(self) -> str:
        return self._told.with_name("passes.log").read_text()[-1000:]


def _recover(accelerator: str, hosts: int, start: Callable[[SimInfo, Path, str, int], _Job]) -> Recovery:
    with scratch(in_memory=True) as folder, plain_python():
        info = control.up(folder / "sim", SimOptions(delays="instant"))
        job: _Job | None = None
        try:
            job = start(info, folder, accelerator, hosts)
            (name,) = [each["name"].rsplit("/", 1)[-1] for each in control.state(info)["nodes"]]
            before = len(control.journal(info))
            control.act(info, "preempt", name)
            began = time.time()
            up_at, used_s = _await(lambda: _all_up(info, name), job), cpu_of_tree(info.guardian_pid)
            running_at = _await(partial(job.running, 2, hosts), job)
            used_s = cpu_of_tree(info.guardian_pid) - used_s
            asked = [
                row["time"] for row in control.journal(info)[before:] if row["method"].endswith("s.create")
            ]
            cpu_s, job = job.stop(), None
            return Recovery(asked[0] - began, up_at - began, running_at - began, cpu_s, used_s)
        finally:
            if job is not None:
                job.stop()
            control.down(folder / "sim")


def _all_up(info: SimInfo, lost: str) -> bool:
    nodes = control.state(info)["nodes"]
    return any(each["state"] == "READY" and not each["name"].endswith(f"/{lost}") for each in nodes)


def _await(check: Callable[[], bool], job: _Job) -> float:
    """When it was so. Raises BenchError when it never is."""
    deadline = time.time() + LIMIT_S
    while not check():
        if time.time() > deadline:
            raise BenchError(f"no recovery within {LIMIT_S:.0f} s: {job.tail()}")
        time.sleep(0.05)
    return time.time()


def _start_ours(info: SimInfo, folder: Path, accelerator: str, hosts: int, code_bytes: int = 0) -> _Job:
    del info
    env = sim_environment(folder)
    must([TPUCTL, "up", accelerator, "big", "--spot", "--pay"], env, folder)
    (folder / "work").mkdir()
    if code_bytes:
        (folder / "work" / "code.bin").write_bytes(os.urandom(code_bytes))
    job = _Job([TPUCTL, "run", "--no-checkpoint", "--", "sh", "-c", PROGRAM], env, folder / "work")
    _await(lambda: job.running(1, hosts), job)
    return job


def _start_passes(info: SimInfo, folder: Path, accelerator: str, hosts: int) -> _Job:
    del info
    told = folder / "told"
    folder.chmod(0o711)  # for the login of the hosts, which is another user
    told.touch()
    told.chmod(0o666)
    env = {
        **sim_environment(folder),
        "TPUCTL": TPUCTL,
        "LOG": str(folder / "passes.log"),
        "LOCK": str(folder / "cron.lock"),
        "INTERVAL": f"{INTERVAL_S:.0f}",
    }
    must([TPUCTL, "up", accelerator, "big", "--spot", "--pay"], env, folder)
    (folder / "work").mkdir()
    program = PROGRAM.replace(";", f" >>{told};", 1)
    command = [TPUCTL, "run", "--detach", "--no-checkpoint", "--", "sh", "-c", program]
    must(command, env, folder / "work")
    job = _Watchdog(env, folder / "work", told)
    _await(lambda: job.running(1, hosts), job)
    return job


def _start_theirs(info: SimInfo, folder: Path, accelerator: str, hosts: int) -> _Job:
    del hosts
    version = load_accelerators().get(accelerator).runtime_version
    env = {
        **gcloud_environment(info, folder),
        "ZONE": ZONE,
        "TYPE": accelerator,
        "VERSION": version,
        "LOGIN": getpass.getuser(),
        "FIRST": "loop-1",
    }
    create = ["gcloud", "compute", "tpus", "queued-resources", "create", "loop-1", f"--zone={ZONE}"]
    create += [
        "--node-id=loop-1",
        f"--accelerator-type={accelerator}",
        f"--runtime-version={version}",
        "--spot",
    ]
    must(create, env, folder)
    deadline = time.time() + LIMIT_S
    while not _all_up(info, "none") and time.time() < deadline:
        time.sleep(0.1)
    return _Job(["bash", "-c", LOOP], env, folder)
