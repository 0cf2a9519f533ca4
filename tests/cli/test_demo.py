"""The README's first command tells its whole story and leaves nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.require import require_isolated_hosts


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "words",
    [pytest.param((), id=""), pytest.param(("--hosts", "isolated"), id="isolated", marks=pytest.mark.soak)],
)
def test_the_demo_recovers_from_a_preemption_and_ends_like_the_unbroken_run(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    if words:
        require_isolated_hosts()
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("TPUCTL_", "CLOUDSDK_"))}
    done = subprocess.run(
        [str(Path(sys.executable).parent / "tpuctl"), "demo", *words],
        env={**environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    metrics = re.findall(r"^(?:unbroken|preempted): +(final loss .*)$", done.stdout, re.MULTILINE)
    assert len(metrics) == 2
    assert metrics[0] == metrics[1]
    resumed = re.search(r"resumed from step (\d+) \(attempt 2\)", done.stdout)
    assert resumed is not None
    assert 60 <= int(resumed[1]) < 120
    assert "left in the cloud: 0" in done.stdout
    assert list(tmp_path.iterdir()) == []
