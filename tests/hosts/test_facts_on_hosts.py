"""The agent's verb `facts` on this machine: what is there is found, and what hangs holds nobody up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

AGENT = Path(__file__).resolve().parents[2] / "tpuctl" / "agent"
FUSE = Path("/dev/fuse")

# A FUSE file system whose server never answers: a look at it hangs until the server's end is closed.
NEVER_ANSWERS = """
import ctypes, json, os, subprocess, sys
agent, folder = sys.argv[1:]
server = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other"
if libc.mount(b"never", folder.encode(), b"fuse", 0, options.encode()) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
ask = [sys.executable, "-I", "-S", agent, "facts"]
request = json.dumps({"sections": ["space"], "paths": [folder]}).encode()
print(subprocess.run(ask, input=request, capture_output=True, check=True).stdout.decode(), flush=True)
os.close(server)
print(subprocess.run(ask, input=request, capture_output=True, check=True).stdout.decode(), flush=True)
"""


def ask(**request: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(AGENT), "facts"],
        input=json.dumps(request).encode(),
        capture_output=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(os.geteuid() != 0 or not FUSE.exists(), reason="mounting needs root and FUSE")
def test_a_mount_whose_server_does_not_answer_is_dead_and_holds_nobody_up(tmp_path: Path) -> None:
    began = time.monotonic()
    command = ["unshare", "--mount", sys.executable, "-c", NEVER_ANSWERS, str(AGENT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    hanging, closed = (json.loads(line) for line in done.stdout.splitlines() if line)
    errors = [{each["path"]: each["error"] for each in said["space"]} for said in (hanging, closed)]
    assert [each[str(tmp_path)] for each in errors] == ["no answer", "Transport endpoint is not connected"]
    assert [each["/"] for each in errors] == ["", ""]
    assert time.monotonic() - began < 30


def test_paths_that_are_named_are_looked_at(tmp_path: Path) -> None:
    found = ask(sections=["space"], paths=[str(tmp_path), str(tmp_path / "none")])
    space = {each["path"]: each for each in found["space"]}
    assert space[str(tmp_path)]["free_bytes"] > 0
    assert space[str(tmp_path / "none")]["error"] == "No such file or directory"


def test_interpreters_on_the_path_are_found_once() -> None:
    pythons = ask(sections=["pythons"])["pythons"]
    version = ".".join(map(str, sys.version_info[:3]))
    assert version in {each["version"] for each in pythons}
    assert len({os.path.realpath(each["path"]) for each in pythons}) == len(pythons)
