"""`demo`: the whole story on the simulated cloud, told by the same commands that a user types."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tpuctl.cli.console import Console, put
from tpuctl.config.settings import SIM_PROFILE
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.lib.options import Option, argument

if TYPE_CHECKING:
    from tpuctl.sim.server.options import SimOptions

ZONE = "us-central2-b"
SLICE = "v4-16"
STEPS = 120
PREEMPT_AFTER = "saved step 60"
HOLD = ("--var", "HOLD_AT=70")
"""Where the first attempt waits, so that the preemption comes before the end on the busiest machine, too."""
SILENT_S = 900.0
"""A command that says nothing for so long hangs: at a load of 20 the longest silence is a minute."""
BUCKET = "gs://sim-bucket/demo"
SETTINGS = ("--env", "demo-cpu", "--var", f"STEPS={STEPS}")


class Stage:
    """An empty state directory and work directory of its own, and commands typed into it.

    Whoever types what is shown, the exports first, reaches the same simulator, which ends with this process.
    """

    def __init__(self, root: Path, silent_s: float = SILENT_S) -> None:
        self.work, self.state = root / "work", root / "state"
        self._silent_s = silent_s
        self.work.mkdir()
        hidden = ("TPUCTL_", "CLOUDSDK_", "STORAGE_EMULATOR_")
        own = {"TPUCTL_STATE_DIR": str(self.state), "TPUCTL_PROFILE": SIM_PROFILE}
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith(hidden)} | own
        put(f"$ export {' '.join(f'{name}={shlex.quote(value)}' for name, value in own.items())}")
        put(f"$ cd {shlex.quote(str(self.work))}")

    def start_simulator(self, options: SimOptions) -> None:
        """`sim up`, but of a simulator that ends with this process."""
        from tpuctl.cli.running_sim import show_facts
        from tpuctl.sim.server import control

        put(f"$ tpuctl sim up --speed {options.speed:g} --hosts {options.hosts}")
        info = control.up(self.state / SIM_PROFILE, options, bound=True)
        show_facts(Console(json_mode=False, quiet=False, label=SIM_PROFILE), info)

    def end(self) -> None:
        """Ends a simulator that still runs; without a word, for something else was wrong before."""
        from tpuctl.sim.server import control

        with suppress(TpuctlError):
            control.down(self.state / SIM_PROFILE)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Shows and starts one command; its output is merged."""
        put(f"$ tpuctl {shlex.join(words)}")
        return subprocess.Popen(
            [sys.executable, "-c", "from tpuctl.cli.main import main; main()", *words],
            cwd=self.work,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )

    def type(self, *words: str) -> str:
        """Runs one command to its end and returns what it printed. Raises TpuctlError when it fails."""
        return self.watch(self.start(*words), words)

    def type_beside(self, words: tuple[str, ...], on: str, then: tuple[str, ...]) -> str:
        """Runs one command and, when it says `on`, another one beside it; what the first printed.

        Waits for both, so that what they need is there until they end. Raises TpuctlError when one fails.
        """
        said, over = threading.Event(), threading.Event()

        def answer() -> None:
            said.wait()
            if not over.is_set():
                self.type(*then)

        def hear(line: str) -> None:
            if on in line:
                said.set()

        with ThreadPoolExecutor(1) as pool:
            answered = pool.submit(answer)
            try:
                output = self.watch(self.start(*words), words, hear)
            finally:
                if not said.is_set():
                    over.set()
                    said.set()
            answered.result()
        return output

    def watch(
        self, process: subprocess.Popen[bytes], words: tuple[str, ...], hear: Callable[[str], object] = len
    ) -> str:
        """Prints what a command says, tells it to `hear`, and waits for its end."""
        lines = []
        try:
            for line in self._lines_of(process):
                put(line)
                lines.append(line)
                hear(line)
        except TimeoutError:
            process.kill()
            process.wait()
            told = f"`tpuctl {shlex.join(words)}` said nothing for {self._silent_s:g} s"
            raise TpuctlError(f"{told}, and was ended", hint=_busy()) from None
        status = process.wait()
        if status != 0:
            raise TpuctlError(
                f"`tpuctl {shlex.join(words)}` ended with {status}",
                hint="tpuctl demo --keep leaves all files and the simulator's log behind",
            )
        return "\n".join(lines)

    def _lines_of(self, process: subprocess.Popen[bytes]) -> Iterator[str]:
        """Raises TimeoutError when nothing comes for too long."""
        source, rest = process.stdout, b""
        while source is not None:
            if not select.select([source], [], [], self._silent_s)[0]:
                raise TimeoutError
            chunk = os.read(source.fileno(), 1 << 16)
            *whole, rest = (rest + (chunk or b"\n" * bool(rest))).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)
            if not chunk:
                return


def _busy() -> str:
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    return f"the load of this machine is {load:.0f}, it has {processors} processors: try again when it is quiet"


class Story(StrEnum):
    """What can be played."""

    TRAINING = "training"
    DISKS = "disks"


def demo(
    story: Annotated[
        Story, argument("[STORY]", "training, or disks (with --hosts isolated).")
    ] = Story.TRAINING,
    keep: Annotated[bool, Option("Leave the directory with all files behind.")] = False,
    hosts: Annotated[
        str, Option("process, or isolated (root on Linux); see `tpuctl sim up`.", metavar="TIER")
    ] = "process",
) -> None:
    """Show a training run that survives a preemption.

    `disks` shows instead how a disk is cloned to all hosts of a slice, and is back after a preemption. It runs
    on the simulated cloud and needs no account and no money. The first time, `training` downloads JAX from the
    Python package index.
    """
    began = time.monotonic()
    options = _simulator(story, hosts)
    root = Path(tempfile.mkdtemp(prefix="tpuctl-demo-"))
    stage = Stage(root)
    try:
        stage.start_simulator(options)
        if story is Story.DISKS:
            _play_disks(stage)
        else:
            _play(stage)
        stage.type("sim", "down")
    finally:
        stage.end()
        if keep:
            put(f"kept: {root}")
        else:
            import shutil

            shutil.rmtree(root, ignore_errors=True)
    put(f"done in {time.monotonic() - began:.0f} s")


def _simulator(story: Story, hosts: str) -> SimOptions:
    """Raises UsageError where it is not possible."""
    from tpuctl.sim.server.options import SimOptions

    hint = "as root on Linux: tpuctl demo disks --hosts isolated; without: tpuctl demo"
    if story is Story.DISKS and hosts != "isolated":
        raise UsageError("disks are mounted on isolated hosts alone", hint=hint)
    try:
        options = SimOptions(speed=60.0, hosts=hosts)
        options.check()
    except UsageError as error:
        raise UsageError(error.message, hint=hint if story is Story.DISKS else error.hint) from error
    return options


def _play_disks(stage: Stage) -> None:
    """One dev slice writes a disk, all hosts of another read its clone, also after a preemption."""
    where = ("--spot", "--pay", "--zone", ZONE)
    data = "/mnt/data/set"
    stage.type("up", "v4-8", "dev", *where)
    stage.type("disk", "create", "data", "--size", "10", "--zone", ZONE)
    stage.type("disk", "attach", "data", "--to", "dev")
    stage.type("exec", "dev", "--", "sh", "-c", f"head -c 1000000 /dev/urandom > {data}")
    stage.type("up", SLICE, "big", *where)
    stage.type("disk", "clone", "data", "--to", "big")
    sums = [stage.type("exec", name, "--", "sha256sum", data) for name in ("dev", "big")]
    stage.type("exec", "big", "--", "sh", "-c", "! touch /mnt/data/new")
    stage.type("exec", "dev", "--", "sh", "-c", "echo goes on > /mnt/data/word")
    stage.type("sim", "preempt", "big-1")
    stage.type("up", SLICE, "big", *where)
    sums.append(stage.type("exec", "big", "--", "sha256sum", data))
    stage.type("disk", "ls", "--tree")
    stage.type("down", "big", "dev", "--yes")
    stage.type("disk", "gc", "--keep", "0", "--yes")
    stage.type("disk", "rm", "data", "--yes")
    rows = json.loads(stage.type("ls", "--json")) + json.loads(stage.type("disk", "ls", "--json"))
    found = [set(re.findall(r"\b[0-9a-f]{64}\b", text)) for text in sums]
    put(f"left in the cloud: {len(rows)}")
    if len(found[0]) != 1 or any(each != found[0] for each in found) or rows:
        raise TpuctlError("the hosts did not read what was written, or something is left")
    put("the same bytes on every host, before the preemption and after it, and nobody could change them")


def _play(stage: Stage) -> None:
    from tpuctl.model.shipped_files import read_template

    (stage.work / "train.py").write_bytes(read_template("demo_train.py"))
    stage.type("up", SLICE, "--spot", "--pay")
    stage.type("watch", "once")
    unbroken = _final(
        stage.type("run", "--name", "unbroken", "--checkpoint-dir", f"{BUCKET}/unbroken", *SETTINGS, "train.py")
    )
    preempted = _final(_train_through_a_preemption(stage))
    stage.type("manifest", "disturbed", "--attempt", "1")
    stage.type("runs")
    stage.type("down", SLICE, "--yes")
    rows = json.loads(stage.type("ls", "--json"))
    put(f"unbroken:  {unbroken}\npreempted: {preempted}\nleft in the cloud: {len(rows)}")
    if unbroken != preempted or rows:
        raise TpuctlError("the preempted run did not end like the unbroken one, or something is left")
    put("the same parameters to the last bit: the preemption cost time and nothing else")


def _train_through_a_preemption(stage: Stage) -> str:
    words = (
        "run",
        "--name",
        "disturbed",
        "--checkpoint-dir",
        f"{BUCKET}/preempted",
        *SETTINGS,
        *HOLD,
        "train.py",
    )
    output = stage.type_beside(words, PREEMPT_AFTER, ("sim", "preempt", f"{SLICE}-1"))
    if "resumed from step" not in output:
        raise TpuctlError("the preempted run did not go on from its checkpoint")
    return output


def _final(output: str) -> str:
    """`final loss … accuracy … parameters …`, without the worker in front."""
    lines = [line for line in output.splitlines() if "final loss" in line]
    if not lines:
        raise TpuctlError("the training script printed no final metrics")
    return lines[-1].split("│")[-1].strip()
