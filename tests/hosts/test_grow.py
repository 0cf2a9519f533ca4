"""The root part that grows file systems, on a real one: what is held still waits, what is not mounted stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.test_freeze import AGENT, Disk
from tests.support.require import require_isolated_hosts, require_tool

MIB = 1 << 20


class Growing(Disk):
    """A file system whose disk can grow below it."""

    def grow(self, size: int, path: Path | None = None) -> dict[str, Any]:
        request = json.dumps({"path": str(path or self.path), "size": size})
        words = [sys.executable, "-I", "-S", "-B", str(AGENT / "root_part.py"), "grow", request, "60"]
        done = subprocess.run([*self._enter, *words], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def enlarge(self, size: int) -> None:
        os.truncate(self.path.parent / "disk", size)
        number = self.device.partition(":")[2]
        subprocess.run(["losetup", "--set-capacity", f"/dev/loop{number}"], check=True)

    @property
    def size_mib(self) -> int:
        seen = os.statvfs(self.seen)
        return seen.f_blocks * seen.f_frsize // MIB


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Growing]:
    require_isolated_hosts()
    require_tool("mkfs.xfs")
    made = Growing(tmp_path, "xfs")
    yield made
    made.close()


def test_a_file_system_that_is_held_still_grows_when_it_is_let_go(disk: Growing) -> None:
    before = disk.size_mib
    disk.enlarge(800 * MIB)
    assert disk.ask("hold")["state"] == "held"
    told = disk.grow(800 * MIB)
    failed = told["failed"]
    assert (failed["message"], failed["permanent"]) == (f"{disk.path} is held still for a copy", False)
    disk.check_still()
    disk.ask("release")
    assert disk.grow(800 * MIB) == {"answer": {"fs": "xfs"}}
    assert disk.size_mib > before + 300
    assert disk.grow(800 * MIB) == {"answer": {"fs": "xfs"}}  # and again nothing


def test_what_has_not_grown_yet_and_what_is_not_mounted_is_said(disk: Growing, tmp_path: Path) -> None:
    before = disk.size_mib
    assert disk.grow(4096 * MIB)["failed"]["message"] == "the host sees 0 GiB of the disk yet"
    assert disk.grow(MIB, tmp_path / "other") == {"answer": {"fs": ""}}
    assert disk.size_mib == before
