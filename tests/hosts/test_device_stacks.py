"""What lies on a disk keeps it in use, is named, and is taken off before a deletion; and an ext4 grows while
programs write to it. By a real kernel that has device-mapper, arrays and swap, and lets root do all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.own_kernel import run_in_own_kernel
from tests.support.require import require_tool

HERE = Path(__file__).parent
AGENT = HERE.parents[1] / "tpuctl" / "agent"
pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(900)]
STACKS = {
    "of_mappers": [
        ["loop", "/dev/loop0"],
        ["mapper", "/dev/mapper/one"],
        ["mapper", "/dev/mapper/two"],
        ["swap", "/mnt/data/swap"],
    ],
    "of_a_striped_array": [["array", "/dev/md0"]],
    "of_swap_on_a_linear_array": [["array", "/dev/md0"], ["swap", "/dev/md0"]],
    "of_swap": [["swap", "/dev/sdb"]],
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    for tool in ("mdadm", "dmsetup"):
        require_tool(tool)
    folder = tmp_path_factory.mktemp("kernel")
    told: dict[str, Any] = run_in_own_kernel(HERE / "in_own_kernel.py", AGENT, folder, disks_mib=[120])
    return told


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_is_named_and_taken_off_before_a_deletion(found: dict[str, Any], stack: str) -> None:
    told = found[stack]
    assert "error" not in told, told["error"]
    assert told["alone"] == "Device or resource busy"
    assert told["leave"] == {"proved": False, "why": "", "holders": STACKS[stack]}
    assert told["stays"], "who is only named is left alone"
    assert told["delete"] == {"proved": True, "why": "", "holders": []}
    assert (told["alone after"], told["stack after"], told["swaps after"]) == ("yes", 1, 0)
    assert told["whole"], "what was written is on the disk"


def test_an_ext4_grows_under_a_program_that_writes_to_it(found: dict[str, Any]) -> None:
    told = found["grows"]
    assert "error" not in told, told["error"]
    assert told["told"] == told["again"] == {"fs": "ext4"}
    before, after = told["mib"]
    assert (before < 100, after > 170) == (True, True)
    assert told["goes_on"]
