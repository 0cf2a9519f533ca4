"""What probes of data say of it: random, repeated, as the contract says, or nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tpuctl.model.shipped_files import read_template
from tpuctl.runs.probe import MARK, ProbeReport, describe_probe, judge_probe, parse_probe

A, B = ProbeReport("a" * 64, "a" * 64, 9), ProbeReport("b" * 64, "b" * 64, 9)
RANDOM, EMPTY = ProbeReport("c" * 64, "d" * 64, 9), ProbeReport("e" * 64, "e" * 64, 0)


@pytest.mark.parametrize(
    ("reports", "distinct", "wrong"),
    [
        ({0: A, 1: B}, True, []),
        ({0: A, 1: A}, False, []),
        ({0: A, 1: B}, None, []),
        ({0: A, 1: A}, None, []),
        ({0: A, 1: RANDOM}, None, [(1, "it is random")]),
        ({0: A, 1: EMPTY}, True, [(1, "printed nothing")]),
        ({0: A, 1: B, 2: A}, True, [(0, "workers 0,2 have the same first batch")]),
        ({0: A, 1: B, 2: A}, False, [(1, "has another first batch than the others")]),
        ({0: A, 1: "KeyError: x"}, True, [(1, "did not finish: KeyError: x")]),
        ({0: A, 1: ""}, True, [(1, "did not finish")]),
    ],
)
def test_first_batches_are_compared_as_the_contract_says(
    reports: dict[int, ProbeReport | str], distinct: bool | None, wrong: list[tuple[int, str]]
) -> None:
    found = judge_probe(reports, distinct)
    assert [each.worker for each in found] == [worker for worker, _ in wrong]
    assert all(said in each.what for each, (_, said) in zip(found, wrong, strict=True))


def probe(program: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", read_template("data_probe.py").decode(), sys.executable, "-c", program]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_the_program_on_hosts_tells_random_from_steady_and_fails_with_its_probe() -> None:
    steady = parse_probe(probe("print('batch')").stdout)
    assert steady is not None
    assert (steady.first, steady.bytes) == (steady.second, 6)
    other = parse_probe(probe("import os; print(os.urandom(9))").stdout)
    assert other is not None
    assert other.first != other.second
    broken = probe("import sys; print('batch'); sys.exit('no data')")
    assert (broken.returncode, parse_probe(broken.stdout), broken.stderr) == (1, None, "no data\n")
    assert parse_probe(f"{MARK}not json") is None
    assert describe_probe({1: "lost", 0: steady}) == f"0 {steady.first[:12]}"
