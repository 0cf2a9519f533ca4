"""Packages of the operating system wait for the locks of a host that has just booted, and not for ever."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.session import ROOT

HOLD = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
WAIT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import operations, packages
said, failed = [], ""
try:
    packages.wait_for_locks(operations.Job("", "", said.append), sys.argv[3:], float(sys.argv[2]))
except operations.Failed as error:
    failed = str(error)
print(json.dumps([failed, said]))
"""


def wait(limit_s: float, *locks: Path) -> Any:
    words = [sys.executable, "-c", WAIT, str(ROOT / "tpuctl" / "agent"), str(limit_s), *map(str, locks)]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout)


def test_who_holds_a_lock_is_said_and_after_the_limit_it_fails(tmp_path: Path) -> None:
    lock, free = tmp_path / "lock-frontend", tmp_path / "free"
    free.touch()
    words = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        failed, said = wait(0.5, tmp_path / "never-made", free, lock)
        held = f"{lock} is held by {holder.pid}"
        assert failed.startswith(held)
        assert failed.endswith(", still after 0 s")
        assert [each.startswith(f"waiting: {held}") for each in said] == [True]
        holder.communicate()
    assert wait(0.5, lock) == ["", []]
