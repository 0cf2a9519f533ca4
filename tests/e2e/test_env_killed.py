"""kill -9 while one host seals an environment for the others, and while one copies it: of what is at work there
and of tpuctl."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.session import Session, open_session
from tests.support.soak import long, soak
from tests.support.wheels import MINOR, Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

T = TypeVar("T")
WITHIN_S = 60.0
SMALL_FILES, SMALL_BYTES = 200, 120_000
"""All of them go into the archive: sealing takes long enough to be met."""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as opened:
        opened.project = Project(opened.work)
        opened.type("up", "v4-16", "big", "--spot", "--pay")
        yield opened


def until(found: Callable[[], T | None], what: str) -> T:
    ends = time.monotonic() + WITHIN_S
    while (it := found()) is None:
        assert time.monotonic() < ends, f"no {what} after {WITHIN_S:g} s"
        time.sleep(0.002)
    return it


def home(session: Session, worker: int) -> Path:
    (found,) = session.root.glob(f"state/sim/*/h/*/{worker}/home/tpuctl/.tpuctl")
    return found


def at_work(home: Path, word: str) -> int | None:
    """The process with this word in its command that works below a host's home."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes() and home.parent in (path.parent / "cwd").readlink().parents:
                return int(path.parent.name)
        except OSError:
            continue  # gone meanwhile, or nobody's
    return None


def has_told_its_port(home: Path, server: int) -> bool:
    """Whether who serves a copy has said where. Without that it is given up, and contents come another way."""
    told = Path(f"/proc/{server}/environ").read_bytes().split(b"\0")
    (text,) = (each.partition(b"=")[2] for each in told if each.startswith(b"TPUCTL_COPY="))
    request = json.loads(text)
    log = home / "runs" / request["run"] / str(request["attempt"]) / "stdout.log"
    return log.exists() and b'"port"' in log.read_bytes()


def meet_sealing(session: Session) -> list[int]:
    """The installation of the first host, stopped while it writes its archive."""
    first = home(session, 0)
    installer = until(lambda: at_work(first, "env_install.py"), "installation")
    until(lambda: next(first.glob("sealed/.tmp-*"), None), "archive that is written")
    os.kill(installer, signal.SIGSTOP)
    assert list(first.glob("sealed/.tmp-*")), "it was met while it writes"
    return [installer]


def meet_copying(session: Session) -> list[int]:
    """The copy of the second host, stopped within a content, and who serves it."""
    second = home(session, 1)
    server = until(lambda: at_work(home(session, 0), "carry\0serve"), "server")
    until(lambda: has_told_its_port(home(session, 0), server) or None, "port")
    os.kill(server, signal.SIGSTOP)
    copy = until(lambda: at_work(second, "carry\0fetch"), "copy under way")
    os.kill(server, signal.SIGCONT)
    until(lambda: next(second.glob("sealed/*.part"), None), "part of a content")
    os.kill(copy, signal.SIGSTOP)
    assert list(second.glob("sealed/*.part")), "it was met within a content"
    return [copy, server]


@pytest.mark.parametrize(
    ("meet", "host_dies", "tpuctl_dies"),
    [
        (meet_sealing, True, True),
        long(meet_copying, True, True),
        soak(meet_sealing, True, False),
        soak(meet_sealing, False, True),
        soak(meet_copying, True, False),
        soak(meet_copying, False, True),
    ],
)
def test_what_was_killed_in_between_is_completed_and_nothing_half_made_is_used(
    session: Session, meet: Callable[[Session], list[int]], host_dies: bool, tpuctl_dies: bool
) -> None:
    name = f"{meet.__name__.replace('_', '')}{host_dies:d}{tpuctl_dies:d}"
    files = {f"{name}/f{each}.txt": f"{each:>10}" * (SMALL_BYTES // 10) for each in range(SMALL_FILES)}
    files |= {f"{name}/__init__.py": "", f"{name}/large.txt": "x" * (24 << 20)}
    session.project.add(name, {name: "1.0"}, f"imports: [{name}]", files)
    apply = ("env", "apply", name, "--on", "big")
    before = [set(home(session, worker).glob("envs/*/tpuctl-env.json")) for worker in (0, 1)]
    applying = session.start(*apply)
    try:
        met = meet(session)
        if tpuctl_dies:
            applying.kill()
            applying.wait()
        for each in met:
            os.kill(each, signal.SIGKILL if host_dies else signal.SIGCONT)
        session.finish(applying)
    finally:
        applying.kill()
    if tpuctl_dies:
        assert set(home(session, 1).glob("envs/*/tpuctl-env.json")) == before[1], "marked without its files"
    session.type(*apply)
    assert "2 hosts of big are as" in session.type("env", "verify", name, "--on", "big").stderr
    said = [checked(home(session, worker), name) for worker in (0, 1)]
    assert said[0] == said[1] != ""


def checked(home: Path, name: str) -> str:
    """The digests of all its files on a host."""
    script = f"cd envs/*/lib/python{MINOR}/site-packages/{name} && sha256sum *.*"
    return subprocess.run(["sh", "-c", script], cwd=home, check=True, capture_output=True, text=True).stdout
