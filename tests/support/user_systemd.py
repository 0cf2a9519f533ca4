"""A real `systemd --user` where systemd did not boot the machine: with a /run and a cgroup of its own.

The user instance only asks whether /run/systemd/system is there (sd_booted(3)), which a private /run can have.
`systemctl --user` finds it from outside by the socket below XDG_RUNTIME_DIR.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.require import VARIABLE, require_tool

PROGRAM = "/usr/lib/systemd/systemd"
TIMEOUT_S = 30.0
ENTER = """
for folder in "$@"; do echo $$ >"$folder/cgroup.procs"; done
exec unshare --mount --cgroup sh -c '
    mount --make-rprivate / && mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system || exit
    exec "$0" --user --log-target=console' "$0"
"""


@contextmanager
def user_systemd(environ: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Variables by which this user's systemd is found while this lasts. Skips where there can be none."""
    require_tool("systemctl")
    require_tool("unshare")
    if os.geteuid() != 0 or not Path(PROGRAM).exists():
        _give_up("a user instance of systemd needs root here, and its program")
    cgroups = [Path(tempfile.mkdtemp(prefix="tpuctl-test-", dir=base)) for base in _hierarchies()]
    with tempfile.TemporaryDirectory(prefix="tpuctl-xdg-") as runtime:
        found = {"XDG_RUNTIME_DIR": runtime}
        with (Path(runtime) / "log").open("wb") as log:
            manager = subprocess.Popen(
                ["sh", "-c", ENTER, PROGRAM, *map(str, cgroups)],
                env={**environ, **found},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            _wait_until_it_serves(manager, {**environ, **found}, Path(runtime) / "log")
            yield found
        finally:
            manager.terminate()  # it stops its units and ends
            _end(manager, cgroups)
            for folder in cgroups:
                _remove(folder)


def _hierarchies() -> list[Path]:
    """Where systemd keeps its cgroups: the unified hierarchy, or the named one with that beside it."""
    root = Path("/sys/fs/cgroup")
    bases = [root] if (root / "cgroup.procs").exists() else [root / "systemd", root / "unified"]
    writable = [base for base in bases if (base / "cgroup.procs").exists() and os.access(base, os.W_OK)]
    return [base for base in writable if _can_make(base)]


def _can_make(base: Path) -> bool:
    """In some containers the hierarchy is mounted read-only, whatever access(2) says to root."""
    try:
        os.rmdir(tempfile.mkdtemp(prefix="tpuctl-test-", dir=base))
    except OSError:
        return False
    return True


def _wait_until_it_serves(manager: subprocess.Popen[bytes], environ: Mapping[str, str], log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    command = [shutil.which("systemctl") or "systemctl", "--user", "show-environment"]
    while subprocess.run(command, env=dict(environ), capture_output=True).returncode != 0:
        if manager.poll() is not None or time.monotonic() > deadline:
            _give_up(f"no user instance of systemd here: {log.read_text(errors='replace')[-300:]}")
        time.sleep(0.2)


def _give_up(why: str) -> None:
    if "systemd" in os.environ.get(VARIABLE, "").split(","):
        pytest.fail(f"{VARIABLE} names systemd, and {why}")
    pytest.skip(why)


def _end(manager: subprocess.Popen[bytes], cgroups: list[Path]) -> None:
    """Waits for the manager, then kills whatever is left in its cgroups: nobody else's processes are there."""
    try:
        manager.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        manager.kill()
        manager.wait()
    for procs in (path for folder in cgroups for path in folder.rglob("cgroup.procs")):
        for pid in procs.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def _remove(folder: Path) -> None:
    """A cgroup and what systemd made below it; the kernel takes a moment to forget dead processes."""
    deadline = time.monotonic() + TIMEOUT_S
    for path in sorted([folder, *folder.rglob("*/")], key=lambda each: -len(each.parts)):
        while path.is_dir():
            try:
                path.rmdir()
            except OSError:
                assert time.monotonic() < deadline, f"{path} is still in use"
                time.sleep(0.05)
