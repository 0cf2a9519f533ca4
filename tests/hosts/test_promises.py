"""What a run was promised of a host, beside what is mounted there: no program starts where that is not so."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.session import ROOT

CODE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import facts_storage
print(json.dumps(facts_storage.broken(*json.loads(sys.argv[2]))))
"""
BUCKET = {"path": "/mnt/b", "fuse": True}
DISK = {"path": "/mnt/d", "read_only": False}


def mount(fs: str, device: str, **more: Any) -> dict[str, Any]:
    return {"fs": fs, "device": device, "read_only": False, "options": [], "source": "x", **more}


@pytest.mark.parametrize(
    ("promise", "there", "why"),
    [
        (BUCKET, None, "nothing is mounted there"),
        (BUCKET, mount("ext4", "8:16"), "no bucket is mounted there"),
        (BUCKET, mount("fuse.gcsfuse", "0:40"), ""),
        (DISK, None, "nothing is mounted there"),
        (DISK, mount("fuse.gcsfuse", "0:40"), "no disk is mounted there"),
        (DISK, mount("tmpfs", "0:40"), "no disk is mounted there"),
        (DISK, mount("ext4", "8:16", read_only=True), "it is read-only"),
        (DISK, mount("ext4", "8:16", options=["rw", "noload"]), "its journal was passed over"),
        ({**DISK, "read_only": True}, mount("ext4", "8:16"), "it is not read-only"),
        ({**DISK, "word": "w"}, mount("ext4", "8:16"), "it is another copy"),
        (DISK, mount("ext4", "8:16"), ""),
    ],
)
def test_a_promise_is_kept_only_by_what_was_promised(promise: Any, there: Any, why: str) -> None:
    words = [sys.executable, "-c", CODE, str(ROOT / "tpuctl" / "agent"), json.dumps([promise, there])]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(said) == why
