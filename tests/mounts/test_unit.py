"""The unit that keeps a mount where there is systemd: what systemd makes of it."""

from __future__ import annotations

import os
import runpy
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.require import require_tool
from tests.support.user_systemd import user_systemd
from tpuctl.model.shipped_files import read_template

NAME = "tpuctl-mount-0123456789ab.service"
KEEPER = """
import os, subprocess, sys, time
server = os.path.join(sys.argv[2], "server")
if not os.path.exists(server):
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with open(server, "w") as file:
        file.write(str(child.pid))
with open(os.path.join(sys.argv[2], "keepers"), "a") as file:
    file.write("%d\\n" % os.getpid())
time.sleep(999)
"""
"""In the place of the keeper: it starts a server once, and waits."""


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    tool = require_tool("systemd-analyze")
    unit = tmp_path / NAME
    command = "/usr/bin/env python3 -I -S /var/lib/tpuctl-mounts/x/keeper.py keep /x"
    unit.write_text(read_template("tpuctl-mount.service").decode().replace("@COMMAND@", command))
    done = subprocess.run([tool, "verify", str(unit)], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if NAME in line]
    assert (done.returncode, complaints) == (0, [])


def is_alive(pid: int) -> bool:
    """Whether it runs; one that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_for(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_a_keeper_that_dies_is_started_again_and_what_it_serves_outlives_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the keeper itself asks of systemd, here of that of a user."""
    units, folder = tmp_path / "config/systemd/user", tmp_path / "0123456789ab"
    for each in (units, folder, tmp_path / "bin"):
        each.mkdir(parents=True)
    (folder / "keeper.py").write_text(KEEPER)
    systemctl = tmp_path / "bin/systemctl"
    systemctl.write_text(f'#!/bin/sh\nexec {require_tool("systemctl")} --user "$@"\n')
    systemctl.chmod(0o755)
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    environ["PATH"] = f"{systemctl.parent}:{os.environ['PATH']}"
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "mount_keeper.py").write_bytes(read_template("mount_keeper.py"))
    keeper = runpy.run_path(str(tmp_path / "mount_keeper.py"))
    monkeypatch.setitem(keeper["start"].__globals__, "UNITS", str(units))
    monkeypatch.setitem(keeper["start"].__globals__, "has_systemd", lambda: True)

    def keepers() -> list[int]:
        seen = folder / "keepers"
        return [int(pid) for pid in seen.read_text().split()] if seen.exists() else []

    with user_systemd(dict(os.environ)) as found:
        for name, value in found.items():
            monkeypatch.setenv(name, value)
        keeper["start"](str(folder), read_template("tpuctl-mount.service").decode())
        wait_for(lambda: len(keepers()) == 1 and (folder / "server").exists())
        server = int((folder / "server").read_text())
        os.kill(keepers()[0], 9)
        wait_for(lambda: len(keepers()) == 2)
        keeper["start"](str(folder), read_template("tpuctl-mount.service").decode())  # a newer one
        wait_for(lambda: len(keepers()) == 3)
        assert [is_alive(pid) for pid in (*keepers(), server)] == [False, False, True, True]
        keeper["stop"](str(folder))
        assert [is_alive(pid) for pid in (keepers()[2], server)] == [False, True]
        enabled = units / "multi-user.target.wants" / NAME
        assert enabled.is_symlink()
        keeper["remove"](str(folder), str(tmp_path / "not mounted"))
        assert [os.path.lexists(each) for each in (folder, units / NAME, enabled)] == [False] * 3
        os.kill(server, 9)
