"""`tpuctl ssh-config` as typed: the real ssh, scp and rsync use what it prints, and it follows the slice."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.require import require_tool
from tests.support.session import Session, open_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

UP = ("--spot", "--pay")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        session.type("up", "v4-16", "big", *UP)
        yield session


def included(session: Session) -> Path:
    """A user's own ssh configuration: the line that `--write` prints at its top, and something below."""
    line = session.type("ssh-config", "--write").stdout
    assert re.fullmatch(r"Include \S+\n", line)
    mine = session.root / "config"
    mine.write_text(f"{line}\nHost *\n    BatchMode yes\n    LogLevel ERROR\n")
    return mine


def call(program: str, *words: str | Path) -> subprocess.CompletedProcess[bytes]:
    argv = [require_tool(program), *map(str, words)]
    return subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)


def told_by(conf: Path, alias: str, command: str = "echo ${HOSTNAME##*-}") -> str:
    done = call("ssh", "-F", conf, alias, command)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def files(session: Session) -> dict[str, str]:
    """What the written entries consist of."""
    (folder,) = (session.root / "state").rglob("ssh_config")
    return {path.name: path.read_text() for path in folder.iterdir()}


def settings(conf: Path, alias: str) -> dict[str, str]:
    """What OpenSSH itself makes of the configuration; see ssh(1), -G."""
    printed = call("ssh", "-G", "-F", conf, alias).stdout.decode()
    return dict(line.partition(" ")[::2] for line in printed.splitlines())


def pinned(session: Session, alias: str) -> str:
    found = call("ssh-keygen", "-F", f"tpuctl-{alias}", "-f", _known_hosts(session)).stdout.decode()
    (line,) = [line for line in found.splitlines() if not line.startswith("#")]
    return line.split()[2]


def _known_hosts(session: Session) -> str:
    return settings(included(session), "big-0")["userknownhostsfile"]


@pytest.mark.parametrize("worker", [0, 1])
def test_printed_entries_lead_the_real_ssh_to_each_worker(
    session: Session, worker: int, tmp_path: Path
) -> None:
    conf = tmp_path / "config"
    conf.write_text(session.type("ssh-config", "big").stdout)
    assert settings(conf, f"big-{worker}")["stricthostkeychecking"] == "true"
    assert told_by(conf, f"big-{worker}") == f"{worker}\n"


def test_a_printed_entry_refuses_a_worker_with_another_key(session: Session, tmp_path: Path) -> None:
    """Each host answers, but with the key of the other one."""
    text = session.type("ssh-config", "big").stdout
    aliases = {"tpuctl-big-0": "tpuctl-big-1", "tpuctl-big-1": "tpuctl-big-0"}
    conf = tmp_path / "config"
    conf.write_text(re.sub("|".join(aliases), lambda found: aliases[found[0]], text))
    for alias in ("big-0", "big-1"):
        done = call("ssh", "-F", conf, alias, "true")
        assert (done.returncode, done.stdout) == (255, b"")
        assert b"Host key verification failed" in done.stderr


@pytest.mark.parametrize(("program", "worker"), [("scp", 0), ("rsync", 1)])
def test_files_travel_both_ways_by_alias(session: Session, program: str, worker: int, tmp_path: Path) -> None:
    require_tool(program)
    conf, alias = included(session), f"big-{worker}"
    how: tuple[str | Path, ...] = ("-F", conf) if program == "scp" else ("-a", "-e", f"ssh -F {conf}")
    (tmp_path / "out").write_text(f"by {program} for {worker}")
    there = call(program, *how, tmp_path / "out", f"{alias}:{program}-came")
    assert there.returncode == 0, there.stderr
    assert told_by(conf, alias, f"cat {program}-came; echo ${{HOSTNAME##*-}}") == (
        f"by {program} for {worker}{worker}\n"
    )
    back = call(program, *how, f"{alias}:{program}-came", tmp_path / "back")
    assert back.returncode == 0, back.stderr
    assert (tmp_path / "back").read_text() == f"by {program} for {worker}"


def test_entries_written_twice_are_the_same(session: Session) -> None:
    first = session.type("ssh-config", "--write", "big")
    before = files(session)
    assert sorted(before) == ["big.conf", "big.known_hosts"]
    again = session.type("ssh-config", "--write", "big")
    assert (again.stdout, again.stderr) == (first.stdout, first.stderr)
    assert "2 workers in " in again.stderr
    assert files(session) == before
    assert session.type("ssh-config", "--write").stdout == first.stdout
    assert files(session) == before


def test_the_users_own_configuration_is_never_touched(session: Session) -> None:
    mine = session.root / ".ssh"
    session.type("ssh-config", "--write", "big")
    assert not mine.exists()
    mine.mkdir()
    (mine / "config").write_text("Host elsewhere\n")
    session.type("ssh-config", "--write", "big")
    assert [(path.name, path.read_text()) for path in mine.iterdir()] == [("config", "Host elsewhere\n")]


def test_a_state_directory_with_an_odd_name_is_no_trap(session: Session, tmp_path: Path) -> None:
    odd = tmp_path / "my %h [st]ate"
    odd.symlink_to(session.root / "state")
    environ = session.environ
    session.environ = {**environ, "TPUCTL_STATE_DIR": str(odd)}
    try:
        conf = tmp_path / "config"
        line = session.type("ssh-config", "--write", "big").stdout
        assert str(tmp_path) in line
        conf.write_text(line)
        assert told_by(conf, "big-1") == "1\n"
    finally:
        session.environ = environ
        session.type("ssh-config", "--write", "big")


@pytest.mark.parametrize(
    ("words", "status", "said", "hint"),
    [
        (("bug",), 5, "no slice called bug (known: big)", "did you mean big?"),
        (("--write", "bug"), 5, "no slice called bug (known: big)", "did you mean big?"),
        (("../big",), 5, "no slice called ../big", "tpuctl ls"),
        (("big", "more"), 2, "unexpected extra argument", "tpuctl ssh-config --help"),
    ],
)
def test_a_bad_name_is_refused_with_a_way_out(
    session: Session, words: tuple[str, ...], status: int, said: str, hint: str
) -> None:
    before = files(session)
    done = session.type("ssh-config", *words, status=status)
    assert done.stdout == ""
    assert said in done.stderr
    assert hint in done.stderr.partition("hint: ")[2]
    assert files(session) == before


def test_a_slice_that_has_no_hosts_yet_is_told_and_left_out_of_all(session: Session) -> None:
    session.type("up", "v4-8", "late", *UP, "--no-wait")
    done = session.type("ssh-config", "late", status=1)
    assert done.stdout == ""
    assert "slice late has no reachable workers" in done.stderr
    assert "hint: tpuctl status late" in done.stderr
    assert "late" not in session.type("ssh-config").stdout
    session.type("down", "late", "--yes")


def test_the_same_aliases_reach_the_hosts_of_the_next_incarnation(session: Session) -> None:
    conf = included(session)
    aliases = ("big-0", "big-1")
    places = {alias: settings(conf, alias)["hostname"] for alias in aliases}
    keys = {alias: pinned(session, alias) for alias in aliases}
    session.type("sim", "preempt", "big-1")
    assert call("ssh", "-F", conf, "-o", "ConnectTimeout=5", "big-0", "true").returncode == 255
    session.type("up", "v4-16", "big", *UP)
    assert session.json("status", "big")["node"] == "big-2"
    assert [told_by(conf, alias) for alias in aliases] == ["0\n", "1\n"]
    for alias in aliases:
        assert settings(conf, alias)["hostname"] != places[alias]
        assert pinned(session, alias) != keys[alias]


def test_entries_go_with_their_slice(session: Session) -> None:
    conf = included(session)
    assert files(session) != {}
    session.type("down", "big", "--yes")
    assert files(session) == {}
    assert settings(conf, "big-0")["hostname"] == "big-0"
