"""The unit that keeps a mount where there is systemd: what systemd makes of it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.require import require_tool
from tests.support.user_systemd import user_systemd
from tpuctl.model.shipped_files import read_template

NAME = "tpuctl-mount-0123456789ab.service"
KEEPER = """#!/bin/sh
echo $$ >> keepers
test -e server || { setsid sleep 1000 & echo $! > server; }
exec sleep 999
"""
"""In the place of the keeper: it starts a server once, and waits."""


def unit_of(command: str) -> str:
    return read_template("tpuctl-mount.service").decode().replace("@COMMAND@", command)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    tool = require_tool("systemd-analyze")
    unit = tmp_path / NAME
    unit.write_text(unit_of("/usr/bin/env python3 -I -S /var/lib/tpuctl-mounts/x/keeper.py keep /x"))
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
def test_a_keeper_that_dies_is_started_again_and_what_it_serves_outlives_the_service(tmp_path: Path) -> None:
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    units = tmp_path / "config" / "systemd" / "user"
    units.mkdir(parents=True)
    keeper = tmp_path / "keeper"
    keeper.write_text(KEEPER)
    keeper.chmod(0o755)
    (units / NAME).write_text(unit_of(f"/usr/bin/env -C {tmp_path} {keeper}"))

    def keepers() -> list[int]:
        seen = tmp_path / "keepers"
        return [int(pid) for pid in seen.read_text().split()] if seen.exists() else []

    with user_systemd(environ) as found:

        def systemctl(*words: str) -> None:
            subprocess.run(["systemctl", "--user", *words], env={**environ, **found}, check=True)

        systemctl("start", NAME)
        wait_for(lambda: len(keepers()) == 1 and (tmp_path / "server").exists())
        server = int((tmp_path / "server").read_text())
        os.kill(keepers()[0], 9)
        wait_for(lambda: len(keepers()) == 2)
        assert is_alive(server)
        systemctl("stop", NAME)
        assert not is_alive(keepers()[1])
        assert is_alive(server)
        os.kill(server, 9)
