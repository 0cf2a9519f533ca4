"""The digest of a tree on a host: the agent's module on real files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

AGENT = Path(__file__).resolve().parents[2] / "tpuctl" / "agent"


def tree(top: Path, **request: Any) -> dict[str, Any]:
    """What the verb answers, or what it refuses with."""
    asked = {"path": str(top), "limit": 9, "endings": [".bin"], "head": 3, **request}
    code = (
        "import json, sys, sending as tree\ntry:\n    found = tree.tree(json.loads(sys.argv[1]), None)\n"
        "except tree.Refused as error:\n    found = {'error': error.code, 'message': str(error)}\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(asked)],
        env={**os.environ, "PYTHONPATH": str(AGENT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def top(tmp_path: Path) -> Path:
    for name in ("b.bin", "sub/a.bin", "notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"12345")
        os.utime(path, ns=(0, 1_000))
    (tmp_path / "link").symlink_to("b.bin")
    return tmp_path


def test_a_tree_has_another_digest_whatever_of_it_changes(top: Path) -> None:
    plain = tree(top)
    assert (plain["files"], plain["bytes"]) == (3, 15)
    assert plain["sample"] == {"name": "b.bin", "size": 5, "head": "MTIz"}
    seen = {plain["sha256"]}
    for change in (
        lambda: os.utime(top / "b.bin", ns=(0, 2_000)),
        lambda: (top / "b.bin").rename(top / "c.bin"),
        lambda: (top / "new").touch(),
        lambda: ((top / "link").unlink(), (top / "link").symlink_to("c.bin")),
    ):
        change()
        digest = tree(top)["sha256"]
        assert digest not in seen
        seen.add(digest)


def test_what_a_file_system_and_tpuctl_keep_on_a_disk_is_no_data(top: Path) -> None:
    plain = tree(top)
    (top / "lost+found").mkdir()
    (top / ".tpuctl-disk").write_text("word")
    assert tree(top) == plain


def test_what_cannot_be_listed_is_refused(top: Path) -> None:
    assert tree(top / "nowhere")["error"] == "not-found"
    assert tree(top, limit=3)["error"] == "too-many"
