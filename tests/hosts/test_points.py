"""Folders on which something is to be mounted, on real file systems: what is in the way, and how they close."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import ROOT

AGENT = ROOT / "tpuctl" / "agent"
LOOK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import points
print(json.dumps(points.points_facts({"points": sys.argv[2:]})))
"""
CLOSE = """
import sys
sys.path.insert(0, sys.argv[1])
import points
sys.stdout.write(points.CLOSE)
"""


def trouble(path: str | Path) -> str:
    words = [sys.executable, "-c", LOOK, str(AGENT), str(path)]
    [row] = json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout)
    assert row["path"] == str(path)
    return str(row["trouble"])


def test_what_is_free_or_empty_is_a_place(tmp_path: Path) -> None:
    assert trouble(tmp_path.resolve()) == ""
    assert trouble(tmp_path.resolve() / "new" / "below") == ""


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    top = tmp_path.resolve()
    (top / "full").mkdir()
    (top / "full" / "x").touch()
    (top / "link").symlink_to("/usr")
    assert trouble(top / "full") == f"{top}/full is not empty"
    assert trouble(top / "full" / "x") == f"{top}/full/x is not a directory"
    assert trouble(top / "link") == f"{top}/link is /usr by a symbolic link"
    assert trouble(top / "link" / "local") == f"{top}/link/local is /usr/local by a symbolic link"


def test_a_folder_above_a_mount_is_no_place() -> None:
    assert trouble("/").endswith(" is mounted below /")


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """Closed, if this machine's file system and user can."""
    point = tmp_path / "point"
    program = subprocess.run(
        [sys.executable, "-c", CLOSE, str(AGENT)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    words = ["sh", "-c", f'{program}close_point "$1"', "sh", str(point)]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    assert point.is_dir()
    if said:
        assert said == f"open {point}\n"
        pytest.skip("this user, or the file system of the temporary folder, makes no folder immutable")
    yield point
    subprocess.run(["chattr", "-i", str(point)], check=True, timeout=60)


def test_nothing_can_be_written_to_a_closed_folder(closed: Path) -> None:
    with pytest.raises(PermissionError):
        (closed / "x").touch()
    assert os.listdir(closed) == []
    assert trouble(closed.resolve()) == ""
