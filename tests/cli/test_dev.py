"""`tpuctl dev` as typed: edits that reach the workers, a command that runs again, Ctrl-C, and kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.session import Session, open_session
from tests.support.soak import soak
from tpuctl.transfer.own_output import REPORT_MARK

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
WITHIN_S = 90.0
TYPE = ("v4-16", "--spot", "--pay")
PROGRAM = """\
import os, sys, time
print("{version} in", os.path.basename(os.getcwd()), flush=True)
with open("../started", "a") as file:
    file.write(f"{{os.getpid()}}\\n")
time.sleep({seconds})
sys.exit({status})
"""


class Client:
    """A `tpuctl dev` that runs, and what it has said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in (process.stdout, process.stderr)
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: Iterator[str]) -> None:
        for line in stream:
            self.said.append(line.removeprefix("[sim] "))

    def wait_for(self, *texts: str, behind: int = 0) -> int:
        """The number of lines when each of `texts` was said from line `behind` on; output by both workers."""
        end = time.monotonic() + WITHIN_S
        while not all(self._is_said(text, behind) for text in texts):
            assert self.process.poll() is None, "".join(self.said)
            assert time.monotonic() < end, f"no {texts} in:\n{''.join(self.said)}"
            time.sleep(0.05)
        return len(self.said)

    def _is_said(self, text: str, behind: int) -> bool:
        found = [line for line in self.said[behind:] if text in line]
        return len(found) > ("│" in text and not any("[0-1] │" in line for line in found))

    def end(self, *signals: int) -> str:
        for number in signals:
            self.process.send_signal(number)
            time.sleep(0.05)
        self.process.wait(WITHIN_S)
        for thread in self._threads:
            thread.join(WITHIN_S)
        return "".join(self.said)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        session.type("up", *TYPE[:1], "dev-ada", *TYPE[1:])
        session.environ["TPUCTL_USER"] = "ada"
        yield session


@pytest.fixture
def project(session: Session) -> Path:
    """A directory of its own for each test, where a program begins that sleeps."""
    folder = session.work / f"project-{len(list(session.work.iterdir()))}"
    folder.mkdir()
    write(folder, "first")
    return folder


def write(project: Path, version: str, seconds: int = 600, status: int = 0) -> None:
    (project / "train.py").write_text(PROGRAM.format(version=version, seconds=seconds, status=status))


@contextmanager
def developing(session: Session, project: Path, *words: str) -> Iterator[Client]:
    client = Client(session.start("dev", "--sync", project.name, *words))
    try:
        yield client
    finally:
        client.process.kill()
        client.process.wait()


def on_workers(session: Session, script: str) -> str:
    return session.type("exec", "dev-ada", "--", "sh", "-c", script).stdout


def living(session: Session, project: Path) -> list[str]:
    """The programs that were started on workers, below this directory, and still run."""
    alive = 'for p in $(cat started 2>/dev/null); do test -d /proc/$p && echo "lives $p"; done; true'
    return [line for line in on_workers(session, alive).splitlines() if "lives" in line]


def test_edits_reach_the_workers_and_the_command_runs_again(session: Session, project: Path) -> None:
    (project / "r1.html").write_text(f'{REPORT_MARK.decode()}1">')
    with developing(session, project, "--exec", "python3 train.py", "-L", "0:6006") as client:
        client.wait_for("not part of the code, as tpuctl wrote it: r1.html")
        at = client.wait_for(f"│ first in {project.name}", "leads to port 6006 of dev-ada-0")
        (project / "gone.py").write_text("x")
        write(project, "second")
        at = client.wait_for(f"│ second in {project.name}", behind=at)
        assert len(living(session, project)) == 2  # the first ended before the second began
        on_workers(session, f"test $(cat {project.name}/gone.py) = x")
        (project / "gone.py").unlink()
        at = client.wait_for("│ second in", behind=at)
        on_workers(session, f"! test -e {project.name}/gone.py")
        session.type(
            "exec", "dev-ada", "--worker", "1", "--", "sh", "-c", f"echo '# mine' > {project.name}/train.py"
        )
        write(project, "third", seconds=0, status=7)
        said = "was changed there: it is kept there as train.py.changed-here"
        at = client.wait_for("│ third in", said, "failed: exit status 7", behind=at)
        assert "mine" in on_workers(session, f"cat {project.name}/train.py.changed-here 2>&1; true")
        text = client.end(signal.SIGINT)
    assert client.process.returncode == 130
    assert "stays and may cost money: `tpuctl down dev-ada` ends it" in " ".join(text.split())
    assert living(session, project) == []


def test_many_edits_at_once_are_sent_once(session: Session, project: Path) -> None:
    with developing(session, project) as client:
        at = client.wait_for(f"have {project.name}, 1 file")
        client.process.send_signal(signal.SIGSTOP)
        for number in range(30):
            (project / f"part-{number}.py").write_text(str(number))
        client.process.send_signal(signal.SIGCONT)
        client.wait_for(f"have {project.name}, 31 files", behind=at)
        write(project, "second")
        client.wait_for(f"have {project.name}, 31 files", behind=len(client.said))
        assert sum("have project" in line for line in client.said) == 3


def test_a_killed_client_leaves_no_program_behind(session: Session, project: Path) -> None:
    with developing(session, project, "--exec", "python3 train.py") as client:
        client.wait_for("│ first in")
        assert len(living(session, project)) == 2
        client.end(signal.SIGKILL)
    end = time.monotonic() + WITHIN_S
    while living(session, project):
        assert time.monotonic() < end, "programs outlive the client"


@pytest.mark.parametrize(
    "signals",
    [(signal.SIGINT,), soak((signal.SIGINT, signal.SIGINT), id="twice"), (signal.SIGKILL,)],
    ids=["Ctrl-C", None, "kill -9"],
)
def test_an_end_while_the_directory_is_sent_leaves_whole_files(
    session: Session, project: Path, signals: tuple[int, ...]
) -> None:
    for number in range(40):
        (project / f"large-{number}.bin").write_bytes(os.urandom(200_000))
    with developing(session, project, "--exec", "python3 train.py") as client:
        client.wait_for("Ctrl-C leaves it up")
        client.end(*signals)
        killed = signal.SIGKILL in signals
        # Of two, the second may come last of all.
        ends = (-signal.SIGKILL,) if killed else (130, *([-signal.SIGINT] if len(signals) > 1 else []))
        assert client.process.returncode in ends, client.said
        assert killed or any("stays and may cost money" in line for line in client.said)
    assert not any("Traceback" in line for line in client.said)
    assert living(session, project) == []
    with developing(session, project, "--exec", "python3 train.py") as client:
        client.wait_for("│ first in")
        client.end(signal.SIGINT)
    counts = on_workers(session, f"ls -A {project.name} | wc -l").splitlines()
    assert {line.split()[-1] for line in counts} == {"41"}


def test_the_same_slice_is_found_again_and_changes_nothing(session: Session) -> None:
    before = session.sim_journal()
    client = Client(session.start("dev"))
    client.wait_for("dev-ada is ready: 2 workers, ssh dev-ada-0", "Include")
    client.end(signal.SIGINT)
    assert session.sim_journal() == before


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--sync", "nowhere"), 2, "--sync nowhere does not exist"),
        (("--sync", "file"), 2, "--sync file is not a directory"),
        (("--sync", "empty"), 2, "there is no file to send"),
        (("--sync", "secret"), 2, "looks like secrets"),
        (("--exec", "true"), 2, "--exec needs --sync"),
        (("--sync", "good", "--exec", " "), 2, "the command is empty"),
        (("-L", "web"), 2, "'web' is not PORT"),
        (("v9-8",), 2, "v9-8"),
        (("v4-8", "--spot", "--pay"), 6, "dev-ada"),
    ],
)
def test_bad_input_is_refused_before_anything_changes(
    session: Session, words: tuple[str, ...], status: int, said: str
) -> None:
    for name in ("empty", "good", "secret"):
        (session.work / name).mkdir(exist_ok=True)
    (session.work / "file").write_text("")
    (session.work / "good" / "a.py").write_text("")
    (session.work / "secret" / "id_rsa").write_text("")
    before = session.sim_journal()
    done = session.type("dev", *words, status=status)
    assert said in " ".join(done.stderr.split())
    assert session.sim_journal() == before


def test_a_new_slice_follows_the_rules_of_up(session: Session) -> None:
    session.environ["TPUCTL_USER"] = "eve"
    try:
        for words in ((), ("v4-8", "--spot"), ("v4-4096", "--spot")):
            ours, theirs = (session.type(verb, *words, status=None) for verb in ("dev", "up"))
            assert ours.returncode == theirs.returncode != 0
            assert ours.stderr.rpartition("(")[2] == theirs.stderr.rpartition("(")[2]
    finally:
        session.environ["TPUCTL_USER"] = "ada"
