"""Processes of a run that trace themselves when they are asked, through the hook that PYTHONPATH gives them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.frameworks import write_jax
from tests.support.hooks import write_hooks
from tests.support.require import require_torch_xla

pytestmark = pytest.mark.timeout(300)

TAKES = "import sys, time, jax; from jax import profiler; jax.device_count(); print('ready', flush=True)\n"
WAITS = "sys.stdin.readline()\n"
OWN = """\
profiler.start_trace(sys.argv[1])
print("began", flush=True)
sys.stdin.readline()
profiler.stop_trace()
print("ended", flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "join"
    write_hooks(made)
    write_jax(tmp_path / "library")
    return made


class Program:
    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder, self.process = folder, process
        self.traces = folder.parent / "traces"

    def ask(self, name: str, seconds: float, *, after: float = 0.0) -> None:
        (self.traces / name).mkdir(parents=True)
        at = time.time() + after
        self.tell({"folder": str(self.traces / name), "at": at, "seconds": seconds, "python": 0})

    def tell(self, said: dict[str, Any]) -> None:
        handle = os.open(self.folder / f"{self.process.pid}.trace", os.O_WRONLY | os.O_NONBLOCK)
        os.write(handle, (json.dumps(said) + "\n").encode())
        os.close(handle)

    def said(self, name: str) -> dict[str, Any]:
        path = self.traces / name / f"{self.process.pid}.json"
        return json.loads(path.read_text()) if path.exists() else {"state": None}

    def until(self, name: str, *states: str) -> dict[str, Any]:
        return until(lambda: self.said(name) if self.said(name)["state"] in states else None)

    def traced(self, name: str) -> str:
        return (self.traces / name / "out" / f"{self.process.pid}.xplane.pb").read_text()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> int:
        self.go_on()
        return self.process.wait(30)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


def until(found: Callable[[], Any]) -> Any:
    end = time.monotonic() + 120
    while not (seen := found()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return seen


@contextmanager
def program(folder: Path, text: str, interpreter: str = sys.executable, **variables: str) -> Iterator[Program]:
    environ = {"PATH": os.environ["PATH"], "TPUCTL_JOIN": str(folder), **variables}
    environ["PYTHONPATH"] = os.pathsep.join([str(folder), str(folder.parent / "library")])
    words = [interpreter, "-c", text, str(folder.parent / "own")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, env=environ, text=True, **pipes) as process:
        try:
            running = Program(folder, process)
            assert running.line() == "ready"
            yield running
        finally:
            process.kill()


def test_a_program_traces_itself_at_the_moment_that_was_asked_for(folder: Path) -> None:
    with program(folder, TAKES + WAITS) as running:
        begins = time.time() + 0.3
        running.ask("one", 0.3, after=0.3)
        done = running.until("one", "done")
        assert re.fullmatch(r"traced 0\.[34] s, python 0", running.traced("one"))
        assert done["bytes"] == len(running.traced("one"))
        assert begins - 0.02 < done["started"] < begins + 1
        running.ask("two", 0.1)
        running.until("two", "done")
        assert running.traced("one")  # somebody may be fetching it
        running.tell({"end": str(running.traces / "two")})
        until(lambda: not (running.traces / "two").exists())
        assert running.end() == 0
    assert not list(folder.glob("*.trace"))


def test_until_it_is_asked_it_costs_nothing(folder: Path) -> None:
    with program(folder, TAKES + WAITS) as running:
        tasks = Path(f"/proc/{running.process.pid}/task")
        [other] = [task for task in tasks.iterdir() if task.name != str(running.process.pid)]

        def cost() -> list[str]:
            switches = (other / "status").read_text().split("voluntary_ctxt_switches:")[1].split()[0]
            return [(other / "schedstat").read_text(), switches]

        until(lambda: "State:\tS" in (other / "status").read_text())
        time.sleep(0.1)
        before = cost()
        time.sleep(1.0)
        assert cost() == before


def test_a_process_without_devices_does_not_take_them(folder: Path) -> None:
    text = "import sys, jax, threading; print('ready', flush=True); print(threading.active_count())"
    with program(folder, text) as running:
        assert running.line() == "1"
        assert not list(folder.glob("*.trace"))


def test_a_trace_of_the_programs_own_comes_first(folder: Path) -> None:
    with program(folder, TAKES + WAITS + OWN + WAITS) as running:
        running.ask("ours", 30.0)
        running.until("ours", "tracing")
        running.go_on()
        assert running.line() == "began"
        assert running.until("ours", "done")["cut"] == "the program began a trace of its own"
        running.ask("late", 0.1)
        assert running.until("late", "busy")["error"] == "Profile has already been started."
        running.go_on()
        assert running.line() == "ended"
        assert (folder.parent / "own").exists()
        running.ask("again", 0.1)
        running.until("again", "done")
        assert running.end() == 0


def test_what_the_end_of_the_program_cuts_off_is_written(folder: Path) -> None:
    with program(folder, TAKES + WAITS) as running:
        running.ask("one", 30.0)
        running.until("one", "tracing")
        assert running.end() == 0
        said = running.said("one")
        assert (said["state"], said["cut"]) == ("done", "the program ended")
        assert running.traced("one").startswith("traced ")


def test_who_asked_may_go_in_the_middle(folder: Path) -> None:
    with program(folder, TAKES + WAITS) as running:
        for name, state, seconds in (("before", "waiting", 0.1), ("meanwhile", "tracing", 30.0)):
            running.ask(name, seconds, after=30.0 if state == "waiting" else 0.0)
            running.until(name, state)
            running.tell({"end": str(running.traces / name)})
            until(lambda name=name: not (running.traces / name).exists())
        running.ask("again", 0.1)
        running.until("again", "done")


def test_a_full_disk_is_named_and_the_next_trace_works(folder: Path) -> None:
    text = TAKES + WAITS + "import os; del os.environ['FAKE_FULL']; print('room', flush=True)\n" + WAITS
    with program(folder, text, FAKE_FULL="1") as running:
        running.ask("full", 0.1)
        assert running.until("full", "failed")["error"] == "[Errno 28] No space left on device"
        running.go_on()
        assert running.line() == "room"
        running.ask("again", 0.1)
        running.until("again", "done")


def test_the_real_torch_xla_traces_itself_too(folder: Path) -> None:
    text = (
        "import sys, torch, torch_xla; torch.ones(2, device=torch_xla.device()); print('ready', flush=True)\n"
    )
    shutil.rmtree(folder.parent / "library")
    with program(folder, text + WAITS, require_torch_xla(), PJRT_DEVICE="CPU") as running:
        running.ask("one", 0.5)
        assert running.until("one", "done", "failed", "idle")["framework"] == "torch_xla"
        assert len(list((running.traces / "one" / "out").iterdir())) == 1


SIGNALS = """\
import signal, jax; jax.device_count(); signal.pthread_sigmask(signal.SIG_BLOCK, [15])
import os, sys, time; print("ready", flush=True)
os.kill(os.getpid(), 15); time.sleep(0.1)
print(signal.sigtimedwait([15], 5).si_signo, signal.pthread_sigmask(signal.SIG_BLOCK, []), flush=True)
"""


def test_signals_that_a_program_blocks_stay_its_own(folder: Path) -> None:
    with program(folder, SIGNALS) as running:
        assert running.line() == "15 {<Signals.SIGTERM: 15>}"
        assert running.process.wait(30) == 0


CLOSES = """\
import os
os.closerange(3, 64)
data = open(sys.argv[1], "w+b", buffering=0); data.write(b"x" * 9000); data.seek(0)
others = [os.dup(data.fileno()) for _ in range(4)]
if CLOSES_ALL: [os.dup2(data.fileno(), n) for n in range(data.fileno() + 1, 300)]
print("closed", flush=True); sys.stdin.readline()
print(data.tell(), len(data.read()), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("everything", [False, True], ids=["low", "all"])
def test_files_of_a_program_that_closes_descriptors_are_its_own(folder: Path, everything: bool) -> None:
    with program(folder, TAKES + CLOSES.replace("CLOSES_ALL", str(everything))) as running:
        assert running.line() == "closed"
        with suppress(OSError) if everything else nullcontext():  # nobody may read any more
            running.ask("one", 30.0)
        if not everything:
            running.until("one", "tracing")
        time.sleep(0.2)
        running.go_on()
        assert running.line() == "0 9000"
        assert running.end() == 0
        assert (running.said("one")["state"] == "done") is not everything


def test_a_process_with_the_variables_of_another_writes_beside_it(folder: Path) -> None:
    rank = {"TPUCTL_LOCAL_WORLD_SIZE": "4", "TPUCTL_LOCAL_RANK": "2"}
    with program(folder, TAKES + WAITS, **rank) as one, program(folder, TAKES + WAITS, **rank) as other:
        one.ask("one", 0.1)
        one.until("one", "done")
        at = {"folder": str(one.traces / "one"), "at": time.time(), "seconds": 0.1, "python": 0}
        other.tell(at)
        other.until("one", "done")
        names = {path.name for path in (one.traces / "one" / "out").iterdir()}
        assert names == {"2.xplane.pb", f"2.{other.process.pid}.xplane.pb"}


def test_a_second_request_meanwhile_is_answered(folder: Path) -> None:
    with program(folder, TAKES + WAITS) as running:
        running.ask("one", 0.5)
        running.until("one", "tracing")
        running.ask("two", 0.1)
        assert running.until("two", "busy")["error"] == "another trace is under way"
        running.until("one", "done")
