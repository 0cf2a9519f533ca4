"""The agent's verb `facts` on this machine: what is there is found, and what hangs holds nobody up."""

from __future__ import annotations

import json
import os
import shutil
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
import ctypes, os, subprocess, sys
agent, folder = sys.argv[1:]
server = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other"
if libc.mount(b"never", folder.encode(), b"fuse", 0, options.encode()) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
ask = [sys.executable, "-I", "-S", agent, "facts"]
request = b'{"sections": ["mounts"], "probe_s": 0.5}'
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
    [mount] = [each for each in hanging["mounts"] if each["path"] == str(tmp_path)]
    assert (mount["source"], mount["fs"], mount["alive"], mount["error"]) == (
        "never",
        "fuse",
        False,
        "no answer",
    )
    assert [each["alive"] for each in hanging["mounts"] if each["path"] == "/"] == [True]
    [mount] = [each for each in closed["mounts"] if each["path"] == str(tmp_path)]
    assert (mount["alive"], mount["error"]) == (True, "Transport endpoint is not connected")
    assert time.monotonic() - began < 30


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mkfs.ext4") is None, reason="needs root and mkfs.ext4")
def test_what_is_on_a_disk_is_found(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-L", "weights", str(image)], check=True)
    loop = subprocess.run(["losetup", "--find", "--show", str(image)], capture_output=True, text=True)
    if loop.returncode != 0:
        pytest.skip("no loop devices here")
    device = loop.stdout.strip()
    try:
        [block] = [b for b in ask(sections=["blocks"])["blocks"] if b["name"] == device.rpartition("/")[2]]
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)
    assert (block["fs"], block["label"], block["size_bytes"]) == ("ext4", "weights", 64 << 20)
    assert block["backing"] == str(image)
    assert len(block["uuid"]) == 36


def test_paths_and_packages_that_are_named_are_looked_at(tmp_path: Path) -> None:
    found = ask(
        sections=["space", "packages"], paths=[str(tmp_path), str(tmp_path / "none")], packages=["no-such"]
    )
    space = {each["path"]: each for each in found["space"]}
    assert space[str(tmp_path)]["free_bytes"] > 0
    assert space[str(tmp_path / "none")]["error"] == "No such file or directory"
    assert found["packages"]["installed"] == {}


def test_interpreters_on_the_path_are_found_once() -> None:
    pythons = ask(sections=["pythons"])["pythons"]
    version = ".".join(map(str, sys.version_info[:3]))
    assert version in {each["version"] for each in pythons}
    assert len({os.path.realpath(each["path"]) for each in pythons}) == len(pythons)
