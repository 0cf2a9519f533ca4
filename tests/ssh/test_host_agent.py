"""The agent over SSH: runs that outlive us, commands that do not, and nothing left behind."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.ssh.conftest import AGENT
from tests.support.soak import soak
from tests.support.sshd import SshFarm
from tpuctl.engine.ports import RemoteCall
from tpuctl.errors import UsageError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.commands import (
    AGENT_FOLDER,
    agent_name,
    render_agent_command,
    render_install_command,
    render_session_request,
)
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.requests import (
    AttemptsRequest,
    CopyName,
    CopyRequest,
    DiagnoseRequest,
    HelloRequest,
    LacksRequest,
    PrepareRequest,
    StacksRequest,
    StartRequest,
    StatusRequest,
    StopRequest,
)
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.model.cloud import HostTarget, RemoteResult
from tpuctl.ssh.remote import SshRemote
from tpuctl.transfer.frames import render_contents
from tpuctl.transfer.tree import (
    Blob,
    Content,
    Entry,
    TreeFile,
    TreeFolder,
    TreeLink,
    list_blobs,
    make_tree,
    parse_tree,
    render_tree,
    select_lacking,
)


def until(condition: Callable[[], Any], what: str, timeout_s: float = 20.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)
    return found


def bundle_of(**files: str) -> Content:
    plain = make_tree({name.replace("__", "."): text.encode() for name, text in files.items()})
    entries = [replace(entry, mode=0o755) for entry in parse_tree(plain.tree) if isinstance(entry, TreeFile)]
    return Content(render_tree(entries), plain.read)


EMPTY = Blob(hashlib.sha256(b"").hexdigest(), 0)


def tree_of(*entries: Entry) -> Content:
    """A tree whose files are empty."""
    return Content(render_tree(entries), lambda _sha256: [])


def deliver(agent: HostAgent, targets: list[HostTarget], content: Content) -> str:
    """Puts the tree and all its contents on the hosts, without a look at what they make of it."""
    tree = Blob(content.sha256, len(content.tree))
    blobs = [tree]
    with contextlib.suppress(ValueError):
        blobs += list_blobs(parse_tree(content.tree))
    frames = b"".join(
        render_contents(
            (blob, 0, [content.tree] if blob == tree else content.read(blob.sha256)) for blob in blobs
        )
    )
    replies = agent.call(targets, "receive", {"area": "blobs"}, payload=frames)
    assert all(reply.error is None for reply in replies)
    return content.sha256


class Runs:
    """Short words for the life of an attempt on some hosts."""

    def __init__(self, agent: HostAgent, targets: list[HostTarget]) -> None:
        self.agent = agent
        self.targets = targets

    def prepare(self, attempt: str = "1", *, fence: int = 1, bundle: Content | None = None) -> list[Any]:
        digest = None if bundle is None else deliver(self.agent, self.targets, bundle)
        return self.agent.ask(
            self.targets, PrepareRequest(run="r1", attempt=attempt, fence=fence, bundle=digest)
        )

    def start(self, *argv: str, attempt: str = "1", fence: int = 1, **more: Any) -> list[Any]:
        request = {"run": "r1", "attempt": attempt, "fence": fence, "argv": list(argv), "grace_s": 0.3, **more}
        return self.agent.ask(self.targets, StartRequest(**request))

    def status(self, attempt: str = "1") -> WorkerStatus:
        value = self.agent.ask(self.targets, StatusRequest("r1", attempt))[0].value
        assert value is not None
        return value

    def ended(self, attempt: str = "1") -> WorkerStatus:
        until(lambda: self.status(attempt).state.final, "the end of the attempt")
        return self.status(attempt)


@pytest.fixture
def runs(agent: HostAgent, target: HostTarget) -> Runs:
    return Runs(agent, [target])


@pytest.fixture
def home(farm: SshFarm, target: HostTarget) -> Path:
    return farm.folder / "home-0"


def test_the_agent_installs_itself_where_it_is_missing(
    agent: HostAgent, target: HostTarget, home: Path
) -> None:
    [answer] = agent.ask([target], HelloRequest())
    assert answer.value is not None
    assert (answer.value.host.worker_id, answer.value.host.home) == ("0", str(home))
    [folder] = (home / AGENT_FOLDER).iterdir()
    assert folder.name == agent_name(agent.sha256)
    with zipfile.ZipFile(AGENT) as archive:
        names = archive.read("MODULES").decode().split()
        assert sorted([*names, "MODULES"]) == sorted(archive.namelist())
        for name in names:
            assert (folder / name).read_bytes() == archive.read(name)


def test_what_a_verb_imported_is_compiled_once(agent: HostAgent, target: HostTarget, home: Path) -> None:
    assert agent.ask([target], HelloRequest())[0].value is not None
    [cache] = (home / AGENT_FOLDER).glob("*/__pycache__")
    kept = {path.name: path.stat().st_ino for path in cache.iterdir()}
    agent.remote.rest()
    assert {"entry", "verbs", "hello"} <= {name.partition(".")[0] for name in kept}
    assert agent.ask([target], HelloRequest())[0].value is not None
    assert kept.items() <= {path.name: path.stat().st_ino for path in cache.iterdir()}.items()


def test_a_second_install_changes_nothing(agent: HostAgent, target: HostTarget, home: Path) -> None:
    source = AGENT.read_bytes()
    install = RemoteCall(render_install_command(agent.sha256, len(source)), source)
    assert agent.remote.run([target], install)[0].ok
    before = {path: path.stat().st_ino for path in (home / AGENT_FOLDER).rglob("*")}
    assert agent.remote.run([target], install)[0].ok
    assert {path: path.stat().st_ino for path in (home / AGENT_FOLDER).rglob("*")} == before


DAMAGE = {"empty": b"", "zeros": b"\0" * 400, "half": b"def main(arguments"}
DAMAGED = [("entry.py", "empty"), ("session.py", "zeros"), ("base.py", "half"), ("hello.py", "empty")]


@pytest.mark.parametrize(
    ("module", "damage"),
    [*DAMAGED, *(soak(name, each) for name, _ in DAMAGED for each in DAMAGE if (name, each) not in DAMAGED)],
)
def test_an_agent_that_the_disk_damaged_is_mended_by_the_next_command(
    agent: HostAgent, target: HostTarget, home: Path, module: str, damage: str
) -> None:
    agent.ask([target], HelloRequest())
    [folder] = (home / AGENT_FOLDER).iterdir()
    (folder / module).write_bytes(DAMAGE[damage])
    heard: list[tuple[str, bytes]] = []
    command = ["sh", "-c", "echo out; echo once >> said; exit 7"]
    [done] = agent.session([target], command, lambda _, stream, data: heard.append((stream, data)))
    assert done.exit_status == 7
    assert b"".join(data for stream, data in heard if stream == "stdout") == b"out\n"
    assert (home / "said").read_text() == "once\n"
    agent.remote.rest()  # else an agent answers that read its modules before
    assert agent.ask([target], HelloRequest())[0].value is not None
    with zipfile.ZipFile(AGENT) as archive:
        assert (folder / module).read_bytes() == archive.read(module)
    assert [path.name for path in (home / AGENT_FOLDER).iterdir()] == [folder.name]


def test_a_compiled_module_that_the_disk_cut_short_is_mended(
    agent: HostAgent, target: HostTarget, home: Path
) -> None:
    assert agent.ask([target], HelloRequest())[0].value is not None
    [compiled] = (home / AGENT_FOLDER).glob("*/__pycache__/hello.*.pyc")
    compiled.write_bytes(compiled.read_bytes()[:60])
    agent.remote.rest()
    assert agent.ask([target], HelloRequest())[0].value is not None


def test_a_command_whose_own_exit_status_is_that_of_a_missing_agent_runs_once(
    agent: HostAgent, target: HostTarget, home: Path
) -> None:
    heard: list[bytes] = []
    command = ["sh", "-c", "echo once >> said; exit 97"]
    ended: list[RemoteResult] = []
    [result] = agent.session([target], command, lambda _, __, data: heard.append(data), on_end=ended.append)
    assert (result.exit_status, [each.exit_status for each in ended]) == (97, [97])
    assert (home / "said").read_text() == "once\n"
    assert heard == []


OBSERVED_INSTALL = """
import os, sys
archive, place = sys.argv[1:]
real = os.fsync, os.rename

def fsync(handle):
    print("fsync", os.readlink("/proc/self/fd/%d" % handle))
    real[0](handle)

def rename(source, target):
    if target == place:
        print("rename", source)
    real[1](source, target)

os.fsync, os.rename = fsync, rename
sys.path.insert(0, archive)
from install import install
sys.exit(install(archive, place))
"""
"""Says in which order things reach the disk."""


def test_the_agent_is_on_the_disk_before_it_has_its_name(tmp_path: Path) -> None:
    place = tmp_path / "agent-x"
    argv = [sys.executable, "-c", OBSERVED_INSTALL, str(tmp_path / "archive"), str(place)]
    (tmp_path / "archive").write_bytes(AGENT.read_bytes())
    done = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    named = next(number for number, line in enumerate(done) if line.startswith("rename "))
    folder = Path(done[named].removeprefix("rename "))
    written = {f"fsync {folder / path.relative_to(place)}" for path in [place, *place.rglob("*")]}
    assert len(written) > 40
    assert written <= set(done[:named])
    assert done[named + 1 :] == [f"fsync {tmp_path}"]


def test_an_agent_that_cannot_be_unpacked_is_not_installed_and_the_reason_is_told(
    agent: HostAgent, target: HostTarget, home: Path
) -> None:
    (home / AGENT_FOLDER).mkdir(parents=True)
    (home / AGENT_FOLDER / agent_name(agent.sha256)).write_text("in the way")
    [answer] = agent.ask([target], HelloRequest())
    assert answer.value is None
    assert "could not be installed" in answer.message
    assert "Not a directory" in answer.message
    assert [path.name for path in (home / AGENT_FOLDER).iterdir()] == [agent_name(agent.sha256)]


def test_a_blob_that_broke_off_goes_on_where_it_was(agent: HostAgent, target: HostTarget, home: Path) -> None:
    digest = hashlib.sha256(b"abc").hexdigest()
    frames = b"".join(render_contents([(Blob(digest, 3), 0, [b"ab", b"c"])]))
    [reply] = agent.call([target], "receive", {"area": "blobs"}, payload=frames[: frames.index(b"ab") + 2])
    assert reply.error == "bad-payload"
    assert [path.name for path in (home / ".tpuctl/blobs").iterdir()] == [f"{digest}.part"]
    rest = b"".join(render_contents([(Blob(digest, 3), 2, [b"abc"])]))
    [reply] = agent.call([target], "receive", {"area": "blobs"}, payload=rest)
    assert reply.error is None, reply
    assert [(path.name, path.read_bytes()) for path in (home / ".tpuctl/blobs").iterdir()] == [(digest, b"abc")]


def test_content_that_was_damaged_on_the_disk_is_asked_for_again(runs: Runs, home: Path) -> None:
    bundle = bundle_of(a="1")
    deliver(runs.agent, runs.targets, bundle)
    blob = home / ".tpuctl/blobs" / hashlib.sha256(b"1").hexdigest()
    blob.write_bytes(b"2")
    [answer] = runs.agent.ask(
        runs.targets, PrepareRequest(run="r1", attempt="1", fence=1, bundle=bundle.sha256)
    )
    assert answer.error == "missing-blob"
    [answer] = runs.agent.ask(
        runs.targets, PrepareRequest(run="r1", attempt="1", fence=1, bundle=bundle.sha256)
    )
    assert answer.value is not None
    assert not answer.value.prepared
    [lacking] = runs.agent.ask(runs.targets, LacksRequest("blobs", bundle.sha256))
    assert select_lacking(list_blobs(parse_tree(bundle.tree)), lacking.value.bits) == {
        Blob(hashlib.sha256(b"1").hexdigest(), 1)
    }
    assert runs.prepare(bundle=bundle)[0].value.prepared
    assert (home / ".tpuctl/runs/r1/1/work/a").read_text() == "1"


def test_a_program_that_writes_into_its_files_does_not_change_the_next_attempt(runs: Runs, home: Path) -> None:
    bundle = bundle_of(a="1")
    runs.prepare("1", bundle=bundle)
    (home / ".tpuctl/runs/r1/1/work/a").write_text("changed")
    runs.prepare("2", bundle=bundle)
    assert (home / ".tpuctl/runs/r1/2/work/a").read_text() == "1"


def test_old_attempts_and_content_that_nobody_uses_are_cleared_away(runs: Runs, home: Path) -> None:
    for number in ("0", "1"):
        runs.prepare(number, bundle=bundle_of(a=number))
        runs.start("true", attempt=number)
        runs.ended(number)
    folder = home / ".tpuctl/runs/r1"
    os.utime(folder / "0", (1, 1))
    for number in range(2, 11):
        shutil.copytree(folder / "1", folder / str(number))
    runs.prepare("11", bundle=bundle_of(a="running"))
    runs.start("sleep", "60", attempt="11")
    for blob in (home / ".tpuctl/blobs").iterdir():
        os.utime(blob, (1, 1))
    runs.prepare("12", bundle=bundle_of(a="last"))
    [listed] = runs.agent.ask(runs.targets, AttemptsRequest())
    assert listed.value is not None
    assert {one.attempt for one in listed.value.attempts} == {str(number) for number in range(1, 13)}
    left = {path.read_bytes() for path in (home / ".tpuctl/blobs").iterdir()}
    assert {content for content in left if len(content) < 20} == {b"1", b"running", b"last"}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_files_that_are_mounted_into_an_attempt_are_not_cleared_away_with_it(runs: Runs, home: Path) -> None:
    folder = home / ".tpuctl/runs/r1"
    for number in ("0", "1"):
        runs.prepare(number)
        runs.start("true", attempt=number)
        runs.ended(number)
    for number in range(2, 12):
        shutil.copytree(folder / "1", folder / str(number))
    os.utime(folder / "0", (1, 1))
    bucket = folder / "0/work/my data"
    bucket.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(bucket)], check=True)
    try:
        (bucket / "precious").touch()
        os.utime(folder / "0", (1, 1))
        runs.prepare("12")
        assert (bucket / "precious").exists()
    finally:
        subprocess.run(["umount", str(bucket)], check=True)
    runs.prepare("13")
    assert not (folder / "0").exists()


def test_what_a_running_copy_is_to_complete_is_not_cleared_away(runs: Runs, home: Path) -> None:
    tree = bundle_of(a="1")
    runs.prepare("1", bundle=tree)
    shutil.rmtree(home / ".tpuctl/runs/r1/1")
    name = (f"copy-{tree.sha256[:16]}", "r1-1-serve")
    request = CopyRequest(*name, 1, "serve", "blobs", tree.sha256, 60, "127.0.0.1")
    [begun] = runs.agent.ask(runs.targets, request)
    assert begun.value is not None
    blob = home / ".tpuctl/blobs" / tree.sha256

    def stays(attempt: str) -> bool:
        os.utime(blob, (1, 1))
        runs.prepare(attempt)
        return blob.exists()

    assert stays("2")
    runs.agent.ask(runs.targets, StopRequest(*name, 0.1))
    until(
        lambda: runs.agent.ask(runs.targets, StatusRequest(*name))[0].value.state.final,
        "the copy's end",
    )
    assert not stays("3")


def test_to_ask_how_a_copy_stands_that_is_going_reads_nothing_else(runs: Runs, home: Path) -> None:
    tree = bundle_of(a="1")
    runs.prepare("1", bundle=tree)
    name = (f"copy-{tree.sha256[:16]}", "r1-1-serve")
    request = CopyRequest(*name, 1, "serve", "blobs", tree.sha256, 60, "127.0.0.1")
    runs.agent.ask(runs.targets, request)
    blob = home / ".tpuctl/blobs" / tree.sha256
    blob.unlink()
    os.mkfifo(blob)  # whoever opens it waits for ever
    poll = LacksRequest("blobs", tree.sha256, copy=CopyName(*name), patience_s=0.1)
    [answer] = runs.agent.ask(runs.targets, poll, timeout_s=10.0)
    assert answer.value is not None, answer
    assert answer.value.bits is None
    assert answer.value.copy is not None
    assert answer.value.copy.going


def test_copies_that_somebody_may_begin_again_are_not_cleared_away(runs: Runs, home: Path) -> None:
    def copy_of(run: str) -> Path:
        request = CopyRequest(run, "r1-1-fetch", 1, "fetch", "blobs", "5a" * 32, 60, "127.0.0.1", 1, "5a" * 32)
        runs.agent.ask(runs.targets, request)
        status = StatusRequest(run, "r1-1-fetch")
        until(lambda: runs.agent.ask(runs.targets, status)[0].value.state.final, "the copy's end")
        return home / ".tpuctl/runs" / run / "r1-1-fetch"

    first = copy_of("copy-first")
    os.utime(first, (1, 1))
    with (first.parent / "lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as whoever begins a copy
        second = copy_of("copy-second")
        runs.prepare("1")
        assert (first.exists(), second.exists()) == (True, False)
    runs.prepare("2")
    assert not first.exists()


def test_prepare_repairs_what_a_crash_left(runs: Runs, home: Path) -> None:
    folder = home / ".tpuctl/runs/r1/1"
    (folder / "work.tmp.99").mkdir(parents=True)
    (folder / "work").mkdir()
    (folder / "work" / "half").touch()
    assert runs.prepare(bundle=bundle_of(whole="1"))[0].value.prepared
    assert sorted(path.name for path in folder.iterdir()) == ["prepared.json", "work"]
    assert [path.name for path in (folder / "work").iterdir()] == ["whole"]


@pytest.mark.parametrize(
    "bundle",
    [
        tree_of(TreeFile("/etc/evil", 0o644, EMPTY)),
        tree_of(TreeFile("../evil", 0o644, EMPTY)),
        tree_of(TreeFile("a/../../evil", 0o644, EMPTY)),
        tree_of(TreeFile("evil/", 0o644, EMPTY)),
        tree_of(TreeLink("link", "/etc/passwd")),
        tree_of(TreeLink("a/link", "../../evil")),
        tree_of(TreeFile("same", 0o644, EMPTY), TreeLink("same", "x")),
        Content(b'{"entries":[["h","hard","/etc/passwd"]]}', lambda _: []),
        Content(b'{"entries":[["f","a",420,"../../../etc/passwd",1]]}', lambda _: []),
        Content(b"this is no tree", lambda _: []),
    ],
    ids=[
        "absolute",
        "parent",
        "hidden-parent",
        "no-name",
        "link-out",
        "link-up",
        "twice",
        "hard-link",
        "digest",
        "garbage",
    ],
)
def test_a_hostile_bundle_is_refused_and_nothing_is_left(runs: Runs, home: Path, bundle: Content) -> None:
    digest = hashlib.sha256(bundle.tree).hexdigest()
    (home / ".tpuctl/blobs").mkdir(parents=True)
    (home / ".tpuctl/blobs" / digest).write_bytes(bundle.tree)
    (home / ".tpuctl/blobs" / EMPTY.sha256).touch()
    [answer] = runs.agent.ask(runs.targets, PrepareRequest(run="r1", attempt="1", fence=1, bundle=digest))
    assert answer.error in ("bad-bundle", "bad-request")
    assert not (home / ".tpuctl/runs").exists()
    assert not list(home.rglob("evil"))


def test_a_bundle_may_not_write_through_its_own_links(runs: Runs, home: Path) -> None:
    links = (TreeFolder("deep/er", 0o755), TreeLink("deep/er/up", "../.."), TreeLink("out", "deep/er/up/.."))
    for bundle in (tree_of(*links), tree_of(TreeLink("in", "d"), TreeFile("in/evil", 0o644, EMPTY))):
        assert runs.prepare(bundle=bundle)[0].error == "bad-bundle"
        assert not list(home.rglob("evil"))
        assert not (home / ".tpuctl/runs/r1/1/work").exists()


def test_links_inside_a_bundle_and_executable_bits_survive(runs: Runs, home: Path) -> None:
    bundle = tree_of(
        TreeFile("d/plain", 0o644, EMPTY), TreeFile("d/tool", 0o755, EMPTY), TreeLink("link", "d/plain")
    )
    assert runs.prepare(bundle=bundle)[0].value.prepared
    work = home / ".tpuctl/runs/r1/1/work"
    assert os.readlink(work / "link") == "d/plain"
    assert os.access(work / "d/tool", os.X_OK)
    assert not (work / "d/plain").stat().st_mode & 0o100


def test_starts_at_the_same_time_start_once(runs: Runs, home: Path) -> None:
    runs.prepare()
    runs.targets = runs.targets * 6
    answers = runs.start("sh", "-c", "echo once >> count")
    assert sorted(answer.value.already for answer in answers) == [False] + [True] * 5
    runs.ended()
    assert (home / ".tpuctl/runs/r1/1/work/count").read_text() == "once\n"


def test_stopping_what_is_unknown_or_ended_is_fine(runs: Runs) -> None:
    assert runs.agent.ask(runs.targets, StopRequest("other", "1", 1.0))[0].value.state is WorkerState.ABSENT
    runs.prepare()
    runs.start("true")
    runs.ended()
    assert runs.agent.ask(runs.targets, StopRequest("r1", "1", 1.0))[0].value.state is WorkerState.EXITED
    assert runs.ended().stopped is False


def test_another_boot_makes_a_running_attempt_lost(runs: Runs, home: Path) -> None:
    runs.prepare()
    runs.start("sleep", "60")
    path = home / ".tpuctl/runs/r1/1/status.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "another"}))
    assert runs.status().state is WorkerState.LOST


SECRET = "s3cr3t-Ωvalue"
SEES_SECRET = """\
import os, pathlib, sys, time
seen = pathlib.Path(os.environ["TPUCTL_SECRETS"], "TOKEN").read_bytes()
assert seen == os.environb[b"TOKEN"] == "s3cr3t-Ω".encode() + b"value"
pathlib.Path(os.environ["TPUCTL_SECRETS"], "more").mkdir()
pathlib.Path("made").write_text(os.environ["TPUCTL_SECRETS"])
pathlib.Path("made").rename("folder")
time.sleep(float(sys.argv[1]))
"""


def start_with_secret(runs: Runs, home: Path, seconds: float, attempt: str = "1") -> Path:
    """The folder of a program that has found its secret in it."""
    runs.prepare(attempt)
    argv = (sys.executable, "-c", SEES_SECRET, str(seconds))
    runs.start(*argv, attempt=attempt, env={"TOKEN": SECRET}, secrets=["TOKEN"])
    said = home / ".tpuctl/runs/r1" / attempt / "work/folder"
    until(lambda: said.exists() or runs.status(attempt).state.final, "the arrival of the secret")
    return Path(said.read_text())


def test_secrets_reach_the_process_and_neither_disk_nor_arguments(
    runs: Runs, home: Path, farm: SshFarm
) -> None:
    folder = start_with_secret(runs, home, 60)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "TOKEN")] == [0o700, 0o600]
    assert all(SECRET not in line for line in farm.processes().values())
    files = [path for path in home.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    runs.agent.ask(runs.targets, StopRequest("r1", "1", 0.3))
    runs.ended()
    assert not folder.exists()


def test_a_secret_that_a_program_writes_or_has_among_its_arguments_stays_on_the_host(
    runs: Runs, home: Path
) -> None:
    runs.prepare()
    code = "import os, sys, time; print('has', os.environ['TOKEN'], flush=True); time.sleep(60)"
    runs.start(sys.executable, "-c", code, SECRET, env={"TOKEN": SECRET}, secrets=["TOKEN"])
    log = home / ".tpuctl/runs/r1/1/stdout.log"
    mask = "*" * len(SECRET.encode())
    until(lambda: log.exists() and log.read_text() == f"has {mask}\n", "the mask")
    until(lambda: runs.status().stdout_bytes == len(SECRET.encode()) + 5, "what may be told of the log")
    [diagnosis] = runs.agent.ask(runs.targets, DiagnoseRequest())
    assert diagnosis.value is not None
    assert SECRET not in diagnosis.value.text
    [found] = runs.agent.ask(runs.targets, StacksRequest("r1", "1"))
    assert found.value is not None
    told = repr(found.value)
    assert SECRET not in told
    assert mask in told
    runs.agent.ask(runs.targets, StopRequest("r1", "1", 0.3))
    runs.ended()


def test_what_a_killed_supervisor_left_is_masked_before_it_is_told(runs: Runs, home: Path) -> None:
    runs.prepare()
    code = "import os, time; time.sleep(0.5); print(os.environ['TOKEN'] * 3, flush=True); time.sleep(60)"
    runs.start(sys.executable, "-c", code, env={"TOKEN": SECRET}, secrets=["TOKEN"])
    supervisor = status_file(home, "1")["supervisor"]["pid"]
    os.kill(supervisor, signal.SIGSTOP)
    log = home / ".tpuctl/runs/r1/1/stdout.log"
    try:
        until(lambda: log.stat().st_size, "its output")
        assert runs.status().stdout_bytes in (0, len(SECRET.encode()) * 3 + 1)
    finally:
        os.kill(supervisor, signal.SIGKILL)
    until(lambda: runs.status().state is WorkerState.LOST, "the end of the supervisor")
    until(lambda: runs.status().stdout_bytes == len(SECRET.encode()) * 3 + 1, "its output, masked")
    assert log.read_text() == "*" * len(SECRET.encode()) * 3 + "\n"
    os.kill(status_file(home, "1")["pid"], signal.SIGKILL)


def status_file(home: Path, attempt: str) -> dict[str, Any]:
    """What a supervisor wrote down."""
    found: dict[str, Any] = json.loads((home / ".tpuctl/runs/r1" / attempt / "status.json").read_text())
    return found


def test_files_of_secrets_go_with_their_attempt_and_of_a_killed_one_with_the_next(
    runs: Runs, home: Path
) -> None:
    ended = start_with_secret(runs, home, 0)
    runs.ended()
    left = start_with_secret(runs, home, 60, attempt="2")
    status = status_file(home, "2")
    os.kill(status["supervisor"]["pid"], signal.SIGKILL)
    os.kill(status["pid"], signal.SIGKILL)
    until(lambda: runs.status("2").state is WorkerState.LOST, "the end of the supervisor")
    assert (ended.exists(), left.exists()) == (False, True)
    runs.prepare("3")
    runs.start("sleep", "60", attempt="3")
    assert not left.exists()
    runs.prepare("4")
    runs.start("no-such-program", attempt="4", env={"TOKEN": SECRET}, secrets=["TOKEN"])
    assert runs.ended("4").exit_status == 127
    assert list(left.parent.glob(f"tpuctl-secrets-{status_file(home, '4')['supervisor']['pid']}.*")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_host_without_files_in_memory_says_so_and_its_programs_have_their_secrets_all_the_same(
    tmp_path: Path,
) -> None:
    if subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True).stdout == b"tmpfs\n":
        pytest.skip("files of tests are in memory")
    script = 'mount --make-rprivate / && mount --bind "$HOME" /dev/shm && exec "$@"'
    shell = ["unshare", "--mount", "sh", "-c", script, "sh"]

    def agent(verb: str, **request: Any) -> None:
        subprocess.run(
            [*shell, sys.executable, "-I", "-S", AGENT, verb],
            input=json.dumps({"run": "r", "attempt": "1", **request}).encode() + b"\n",
            env={"HOME": str(tmp_path), "PATH": f"{os.environ['PATH']}:/usr/sbin:/usr/bin"},
            capture_output=True,
            check=True,
        )

    agent("prepare", fence=1, bundle=None)
    argv = ["sh", "-c", 'echo "$TOKEN ${TPUCTL_SECRETS-unset}"; ls /dev/shm']
    agent("start", fence=1, argv=argv, env={"TOKEN": SECRET}, secrets=["TOKEN"])
    agent("follow", silence_s=0)
    logs = tmp_path / ".tpuctl/runs/r/1"
    assert (logs / "stdout.log").read_text() == "*" * len(SECRET.encode()) + " unset\n"
    assert "no file system in memory takes the secrets" in (logs / "stderr.log").read_text()


def test_a_host_that_cannot_watch_programs_says_so_and_begins_no_run_that_needs_it(
    runs: Runs, home: Path
) -> None:
    runs.prepare()
    folder = home / ".tpuctl/runs/r1/1"
    (folder / "join").write_text("in the way")
    [refused] = runs.start("true", check_weights="strict")
    assert (refused.value, refused.error) == (None, "no-hook")
    assert refused.message.endswith("--check strict needs it: make room there, or leave it out")
    assert runs.status().state is WorkerState.PREPARED
    runs.start("sh", "-c", "echo ${PYTHONPATH-unset}", check_weights="weights")
    runs.ended()
    assert (folder / "stdout.log").read_text() == "unset\n"
    assert "whether it came up on the chips, is not known" in (folder / "stderr.log").read_text()


def test_everything_on_disk_is_for_the_user_alone(runs: Runs, home: Path) -> None:
    runs.prepare(bundle=bundle_of(a="1"))
    runs.start("true")
    runs.ended()
    for path in (home / ".tpuctl").rglob("*"):
        if not path.is_symlink():
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert stat.S_IMODE((home / ".tpuctl").stat().st_mode) == 0o700


def test_the_run_has_the_users_own_umask_and_its_path_prefix(runs: Runs, home: Path) -> None:
    runs.prepare()
    runs.start("sh", "-c", "umask; echo $PATH", path_prepend=["envs/K/bin"])
    runs.ended()
    lines = (home / ".tpuctl/runs/r1/1/stdout.log").read_text().splitlines()
    assert int(lines[0], 8) == os.umask(os.umask(0o022))
    assert lines[1].startswith(f"{home}/.tpuctl/envs/K/bin:")


def test_worker_zero_finds_a_free_port(agent: HostAgent, farm: SshFarm) -> None:
    targets = [farm.add(0), farm.add(1)]
    answers = agent.ask(
        targets, lambda it: PrepareRequest("r1", "1", 1, want_port=0 if it.worker == 0 else None)
    )
    ports = [answer.value.free_port for answer in answers if answer.value]
    assert ports[0] is not None
    assert 1024 <= ports[0] < 65536
    assert ports[1] is None


OLD_PYTHON = next(Path.home().glob(".pyenv/versions/3.8.*/bin/python"), Path("/usr/bin/python3.8"))


@pytest.mark.skipif(not OLD_PYTHON.exists(), reason=f"no Python 3.8 at {OLD_PYTHON}")
def test_a_run_works_under_python_3_8(tmp_path: Path) -> None:
    def agent(verb: str, **request: Any) -> dict[str, Any]:
        done = subprocess.run(
            [OLD_PYTHON, "-I", "-S", AGENT, verb],
            input=json.dumps(request).encode() + b"\n",
            env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
            capture_output=True,
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout or b"{}")
        return answer

    which = {"run": "r", "attempt": "1"}
    assert agent("hello")["python_version"].startswith("3.8.")
    assert agent("prepare", **which, fence=1, bundle=None)["prepared"]
    assert not agent("start", **which, fence=1, argv=["sh", "-c", "exit 3"])["already"]
    agent("follow", **which, silence_s=0)
    assert agent("status", **which)["exit_status"] == 3


@pytest.mark.skipif(not OLD_PYTHON.exists(), reason=f"no Python 3.8 at {OLD_PYTHON}")
def test_the_agent_installs_itself_and_runs_a_command_under_python_3_8(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to(OLD_PYTHON)
    environment = {"HOME": str(tmp_path), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}

    def shell(command: str, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["sh", "-c", command], input=stdin, env=environment, capture_output=True)

    source = AGENT.read_bytes()
    digest = hashlib.sha256(source).hexdigest()
    assert shell(render_install_command(digest, len(source)), source).returncode == 0
    request = render_session_request(["sh", "-c", "echo $WORD; sleep 0.1; exit 7"], {"WORD": "out"})
    with subprocess.Popen(
        ["sh", "-c", render_agent_command("session", digest)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as session:
        assert session.stdin is not None
        assert session.stdout is not None
        session.stdin.write(request)
        session.stdin.flush()
        assert session.stdout.read() == b"out\n"
        assert session.wait(20) == 7


def test_a_session_whose_request_is_no_request_says_so(
    remote: SshRemote, agent: HostAgent, target: HostTarget
) -> None:
    agent.ask([target], HelloRequest())
    for damaged in (b"", b"{}\n", b"5\n1\0", b"4\n1\0002\0"):
        [result] = remote.run(
            [target], RemoteCall(render_agent_command("session", agent.sha256), stdin=damaged)
        )
        assert result.exit_status == 1, damaged
        assert b"the request arrived damaged" in result.stderr


def test_a_nul_in_an_argument_is_refused_before_anything_is_sent(agent: HostAgent, target: HostTarget) -> None:
    with pytest.raises(UsageError, match="NUL"):
        agent.session([replace(target, port=1)], ["echo", "a\0b"], lambda *_: None)


class MetadataServer:
    """Keeps what is put below guest attributes; refuses with 403 while `off`, and `busy` deletions first."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []
        self.off = False
        self.busy = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outer.seen.append((self.command, self.path, body))
                self.send_response(403 if outer.off or self.headers["Metadata-Flavor"] != "Google" else 200)
                self.end_headers()

            def do_DELETE(self) -> None:
                outer.seen.append((self.command, self.path, ""))
                outer.busy -= 1
                self.send_response(200 if outer.busy < 0 else 503)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.mark.parametrize("python", [Path(sys.executable), OLD_PYTHON], ids=["this", "3.8"])
@pytest.mark.parametrize(
    ("off", "busy"), [(False, 0), (True, 0), (False, 2)], ids=["on", "off", "on-but-busy-in-the-end"]
)
def test_a_supervisor_publishes_a_heartbeat_that_moves_and_withdraws_it_at_last(tmp_path, python, off, busy):
    if not python.exists():
        pytest.skip(f"no Python at {python}")
    server = MetadataServer()
    server.off, server.busy = off, busy

    def agent(verb: str, **request: Any) -> dict[str, Any]:
        done = subprocess.run(
            [python, "-I", "-S", AGENT, verb],
            input=json.dumps({"run": "r", "attempt": "1", **request}).encode() + b"\n",
            env={
                "HOME": str(tmp_path),
                "PATH": os.environ["PATH"],
                "GCE_METADATA_HOST": server.address,
            },
            capture_output=True,
            check=True,
        )
        answer: dict[str, Any] = json.loads(done.stdout or b"{}")
        return answer

    try:
        agent("prepare", fence=1, bundle=None)
        agent("start", fence=1, argv=["sleep", "600"], grace_s=1.0, beat_s=0.02)
        until(lambda: len(server.seen) >= 3, "three heartbeats")
        agent("stop", grace_s=1.0)
        until(lambda: agent("status")["state"] == "exited", "the end")
        if not off:
            until(lambda: server.busy == -1, "the heartbeat to be withdrawn")
    finally:
        server.close()
    puts = [(path, value) for method, path, value in server.seen if method == "PUT"]
    assert {path for path, _ in puts} == {"/computeMetadata/v1/instance/guest-attributes/tpuctl/heartbeat"}
    assert len({value for _, value in puts}) == len(puts)
    assert len(server.seen) - len(puts) == (0 if off else 1 + busy)
    assert agent("status")["stopped"]
