"""Kubernetes' own code, against what tpuctl makes for clusters.

These are the tests of `tests/kube`, which skip where it is not built; here it is built first.
"""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.conformance.client import Check, Client
from tests.support.kube.build import KUBERNETES, LIBRARIES, build

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 1800.0


def _run(which: str, *files: str) -> Callable[[Mapping[str, str], Path], list[Check]]:
    """The tests of these files as checks."""

    def run(_env: Mapping[str, str], work: Path) -> list[Check]:
        build(which)
        report = work / "report.xml"
        words = (sys.executable, "-m", "pytest", "-n", "0", "-m", "", f"--junitxml={report}", *files)
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
        if not report.exists():
            raise RuntimeError(
                f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        return [_check(case) for case in ET.parse(report).iter("testcase")]

    return run


def _check(case: ET.Element) -> Check:
    """A test that was skipped is one that failed: nothing is missing here."""
    wrong = next((each for each in case if each.tag in ("failure", "error", "skipped")), None)
    return Check(
        case.attrib["name"], wrong is None, "" if wrong is None else wrong.attrib.get("message", "")[:500]
    )


CLIENTS = [
    Client(
        "Kubernetes' server of custom resources",
        (f"go:k8s.io/apiextensions-apiserver@v{LIBRARIES}",),
        _run("crds", "tests/kube/test_schemas.py"),
    ),
    Client(
        "Kubernetes with JobSet and Kueue",
        (f"go:k8s.io/kubernetes@v{KUBERNETES}",),
        _run("cluster", "tests/kube/test_cluster.py"),
    ),
]
