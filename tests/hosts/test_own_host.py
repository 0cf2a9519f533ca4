"""Hosts that share a machine: which processes, and which lock on chips, are theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

AGENT = str(Path(__file__).parents[2] / "tpuctl" / "agent")
HOLDS = "import sys, time; file = open(sys.argv[1]); print('open', flush=True); time.sleep(600)"


def in_agent(program: str, *args: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {AGENT!r}); {program}", *args],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("mark", "mine"), [("", True), ("w/one/0", True), ("w/one/1", False)])
def test_who_has_a_chip_is_looked_for_among_processes_with_the_mark_of_the_host(
    tmp_path: Path, mark: str, mine: bool
) -> None:
    chip = tmp_path / "accel0"
    chip.touch()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(chip)],
        env={**os.environ, "TPUCTL_HOST_MARK": "w/one/0"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        program = "import activity; print(activity.chip_holders((sys.argv[1],)))"
        said = in_agent(program, str(tmp_path / "accel"), TPUCTL_HOST_MARK=mark)
        assert said == (f"({{{holder.pid}: {{{str(chip)!r}}}}}, False)" if mine else "({}, False)")
    finally:
        holder.kill()
        holder.wait()


def test_the_lock_on_chips_is_libtpus_unless_the_host_names_its_own(tmp_path: Path) -> None:
    program = "import lockfile; print(lockfile.PATH)"
    assert in_agent(program, TPUCTL_CHIP_LOCK="") == "/tmp/libtpu_lockfile"
    own = str(tmp_path / "lock")
    assert in_agent(program, TPUCTL_CHIP_LOCK=own) == own
    assert in_agent("import lockfile; print(lockfile.look())", TPUCTL_CHIP_LOCK=own) == "None"


def test_a_chip_that_the_kernel_has_not_given_free_is_busy_and_only_those_that_are_claimed_are_tried(
    tmp_path: Path,
) -> None:
    for number in (0, 2, 10):
        (tmp_path / f"accel{number}").touch()
    (tmp_path / "accelctl").touch()
    program = """
import errno, facts_chips
tried, real = [], facts_chips.os.open
def open_busily(path, flags, *more):
    tried.append(path[-1])
    if path.endswith("2"):
        raise OSError(errno.EBUSY, "busy")
    return real(path, flags, *more)
facts_chips.os.open = open_busily
for request in ({}, {"claim": []}, {"claim": [1]}, {"claim": [0]}):
    tried.clear()
    told = facts_chips.chips_facts(request)
    print([d[-2:] for d in told["devices"]], [d[-6:] for d in told["busy"]], tried)
"""
    said = in_agent(
        program, TPUCTL_CHIP_DEVICES=str(tmp_path / "accel"), TPUCTL_CHIP_LOCK=str(tmp_path / "lock")
    )
    devices = "['l0', 'l2', '10']"
    assert said.splitlines() == [
        f"{devices} [] []",
        f"{devices} ['accel2'] ['0', '2', '0']",
        f"{devices} ['accel2'] ['2']",
        f"{devices} [] ['0']",
    ]
