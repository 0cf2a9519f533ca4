"""Which disk of a host may be written, and which empty one may be formatted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.session import ROOT

AGENT = str(ROOT / "tpuctl" / "agent")
ASK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import disk_roles
print(json.dumps(disk_roles.roles(*json.loads(sys.argv[2]))))
"""
HELD = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import blank
print(json.dumps(blank.held(os.open(sys.argv[2], os.O_RDONLY), "the disk")))
"""
A, B, C = "/dev/nvme0n2", "/dev/nvme0n3", "/dev/nvme0n4"
ONE, TWO, THREE = "persistent-disk-1", "persistent-disk-2", "persistent-disk-3"


def run(program: str, *words: str) -> object:
    done = subprocess.run(
        [sys.executable, "-c", program, AGENT, *words], capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("flags", "names", "told", "wanted"),
    [
        # Nobody says anything but the kernel.
        ({A: True, B: False}, {}, None, {A: "ro", B: "rw"}),
        # By name, whatever the kernel's flag of a copy is.
        ({A: False, B: False}, {A: ONE, B: TWO}, {ONE: "rw", TWO: "ro"}, {A: "rw", B: "ro"}),
        # One with a name is enough for the other.
        ({A: False, B: False}, {A: TWO}, {ONE: "rw", TWO: "ro"}, {A: "ro", B: "rw"}),
        # Without names: all alike, or as many as the kernel says.
        ({A: False, B: False}, {}, {ONE: "ro", TWO: "ro"}, {A: "ro", B: "ro"}),
        ({A: False, B: True}, {}, {ONE: "rw", TWO: "ro"}, {A: "rw", B: "ro"}),
        # A master and its copy that nothing tells apart.
        ({A: False, B: False}, {}, {ONE: "rw", TWO: "ro"}, {A: "", B: ""}),
        ({A: False, B: False, C: True}, {}, {ONE: "rw", TWO: "ro", THREE: "ro"}, {A: "", B: "", C: ""}),
        # One is there that the cloud has not told of yet, or the other way round.
        ({A: False, B: False}, {A: ONE}, {ONE: "rw"}, {A: "rw", B: ""}),
        ({A: False}, {}, {ONE: "rw", TWO: "rw"}, {A: ""}),
        # A disk that the kernel never writes is no disk to write.
        ({A: True}, {A: ONE}, {ONE: "rw"}, {A: ""}),
    ],
)
def test_what_is_unclear_is_not_guessed(
    flags: Mapping[str, bool],
    names: Mapping[str, str],
    told: Mapping[str, str] | None,
    wanted: Mapping[str, str],
) -> None:
    assert run(ASK, json.dumps([flags, names, told])) == wanted


@pytest.mark.parametrize(("at", "size"), [(0, 64 << 20), (12 << 20, 64 << 20), ((64 << 20) - 1, 64 << 20)])
def test_what_holds_anything_is_not_blank(tmp_path: Path, at: int, size: int) -> None:
    disk = tmp_path / "disk"
    with disk.open("wb") as file:
        file.truncate(size)
    assert run(HELD, str(disk)) == ""
    with disk.open("r+b") as file:
        file.seek(at)
        file.write(b"x")
    assert "holds something" in str(run(HELD, str(disk)))
