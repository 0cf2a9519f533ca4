"""A session at a terminal: every command a process of its own, against a simulator of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.typist import typist
from tpuctl.lib.time import parse_timestamp

if TYPE_CHECKING:
    from tests.support.wheels import Project
    from tpuctl.sim.server.info import SimInfo

TPUCTL = str(Path(sys.executable).parent / "tpuctl")
SIM_FIRST = 'eval "$(tpuctl sim env)"; '
"""What hints say before commands of gcloud, which would ask Google else."""
REAL_PACE = ("--speed", "100")
"""All delays of the real cloud, a hundred times faster: a slice is ready after 2 s, for example. For tests of
what waits, races with the cloud or looks at it twice; others say nothing and wait for nothing."""
NAMED_WITHIN_S = 30.0
"""After its limit a run says who keeps it."""
ROOT = Path(__file__).resolve().parents[2]


class Session:
    """Types commands in an empty directory, with a HOME and a state directory of its own."""

    project: Project
    """The environments in its directory, where a fixture made some."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / "work"
        self.work.mkdir()
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(("TPUCTL_", "CLOUDSDK_"))}
        self.environ.update(
            HOME=str(root), TPUCTL_STATE_DIR=str(root / "state"), TPUCTL_PROFILE="sim", COLUMNS="80"
        )

    def start(self, *words: str, program: Sequence[str] = (TPUCTL,)) -> subprocess.Popen[str]:
        """Starts a command without waiting for it."""
        return subprocess.Popen(
            [*program, *words],
            cwd=self.work,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def type(
        self, *words: str, status: int | None = 0, within_s: float = 120.0, later_s: float = 0.0
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, in a fork that has all imports, and checks its exit status; None: any. By
        the clock of the command it is `later_s`."""
        done = typist().type((TPUCTL, *words), self.work, self.environ, timeout_s=within_s, later_s=later_s)
        assert status in (None, done.returncode), f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def type_at_once(self, *commands: Sequence[str]) -> list[subprocess.CompletedProcess[str]]:
        """Runs all of them beside each other, each as `type` does, to their ends."""
        with ThreadPoolExecutor(len(commands)) as pool:
            return list(pool.map(lambda words: self.type(*words), commands))

    def type_killed(self, at: int, when: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command that is killed at its `at`-th change, "before" or "after" it took effect."""
        return typist().type((TPUCTL, *words), self.work, self.environ, timeout_s=120.0, killed=(at, when))

    @staticmethod
    def finish(process: subprocess.Popen[str], timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        stdout, stderr = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def json(self, *words: str) -> Any:
        return json.loads(self.type(*words, "--json").stdout)

    def watch_until(self, ready: Callable[[], bool], *options: str, within_s: float = 120.0) -> None:
        """Passes of the watchdog one after the other, and one more after `ready`: what they bring about takes
        the simulated cloud and its hosts time, so that their number says nothing."""
        end = time.monotonic() + within_s
        while not ready():
            assert time.monotonic() < end, "what the passes should bring about did not come"
            self.type("watch", "once", *options)
        self.type("watch", "once", *options)

    def add_quick_gcloud(self) -> None:
        """A gcloud that says its version at once, for tests that ask for it again and again: starting the real
        one, which tests/gcloud has, takes longer than all else that a command does."""
        program = self.root / "bin" / "gcloud"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\necho Google Cloud SDK 550.0.0\n")
        program.chmod(0o755)
        self.environ["PATH"] = f"{program.parent}{os.pathsep}{self.environ['PATH']}"

    def stalled_after(self, run: str) -> tuple[float, str]:
        """How long after its first attempt started a run stood still, by its own timeline, and its words."""
        [attempt, *_] = self.json("manifest", run)["attempts"]
        first = {row["event"]: row for row in reversed(attempt["timeline"])}
        started, stalled = (parse_timestamp(first[event]["at"]) for event in ("started", "stalled"))
        assert started is not None
        assert stalled is not None
        return stalled - started, first["stalled"]["detail"]

    def storage(self) -> str:
        """The address of the simulated Cloud Storage."""
        (found,) = re.findall(r"STORAGE_EMULATOR_HOST=[\"']?([^\s\"']+)", self.type("sim", "env").stdout)
        return str(found)

    def sim_journal(self) -> list[dict[str, Any]]:
        """Every call that changed, or tried to change, the simulated cloud."""
        from tpuctl.sim.server import control

        return list(control.journal(self.sim()))

    def sim(self) -> SimInfo:
        """Where the simulator is, and its token."""
        from tpuctl.sim.server import control

        info = control.status(self.root / "state" / "sim")
        assert info is not None
        return info

    def ask(self, verb: str, path: str, body: object = None) -> Any:
        """The simulated cloud, spoken to by somebody else: sends JSON, or the content of an object as text."""
        import requests

        info = self.sim()
        sent: dict[str, Any] = {"data": body} if isinstance(body, str) else {"json": body}
        headers = {"Authorization": f"Bearer {info.token}"}
        answer = requests.request(verb, f"{info.http}{path}", headers=headers, timeout=60, **sent)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def on(
        self, slice_name: str, script: str, *options: str, status: int = 0, within_s: float = 120.0
    ) -> list[str]:
        """What a script of a shell prints on the workers, one after the other."""
        words = ("exec", slice_name, *options, "--json", "--", "sh", "-c", script)
        found = json.loads(self.type(*words, status=status, within_s=within_s).stdout)
        return [str(row["stdout"]) for row in (found if isinstance(found, list) else found["workers"])]

    def set_cables(self, state: str, count: int = 2) -> None:
        """Sets `count` network cables of isolated hosts, of which there are two, "up" or "down"."""
        from tpuctl.sim.hosts.files import tag_of
        from tpuctl.sim.hosts.isolated.network import run_ip

        tag = f"tpv{tag_of(self.sim().world_id)}"
        cables = sorted(path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith(tag))
        assert len(cables) == 2
        run_ip([f"link set {cable} {state}" for cable in cables[:count]])


@contextmanager
def open_session(*sim_options: str) -> Iterator[Session]:
    """A session with a running simulator, instant unless said otherwise; nothing is left of it afterwards."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-cli-") as root:
        session = Session(Path(root))
        session.type("sim", "up", *(sim_options or ("--instant",)))
        try:
            yield session
        finally:
            session.type("sim", "down")


@contextmanager
def open_training(program: str) -> Iterator[Session]:
    """A session with `program` as its train.py, and with a slice of two hosts, `big`."""
    with open_session() as session:
        (session.work / "train.py").write_text(program)
        session.type("up", "v4-16", "big", "--spot", "--pay")
        yield session


def another_machine(session: Session) -> Session:
    """The same user with the same simulator and nothing of the first machine's state."""
    root = session.root / "other"
    root.mkdir()
    made = Session(root)
    simulator = Path(session.environ["TPUCTL_STATE_DIR"]) / "sim"
    there = Path(made.environ["TPUCTL_STATE_DIR"]) / "sim"
    there.mkdir(parents=True)
    for name in ("profile.json", "sim.json", "token"):
        shutil.copy(simulator / name, there / name)
        os.chmod(there / name, 0o600)
    return made
