"""Two machines on one simulator, by the very lines that docs/tasks/share-a-fleet.md prints."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import REAL_PACE, ROOT, TPUCTL, Session

LINES = re.compile(r"^```bash\n(first=\$HOME; .*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture
def first() -> Iterator[Session]:
    """A machine with its state where it is unless a variable says otherwise."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-two-") as home:
        session = Session(Path(home))
        del session.environ["TPUCTL_STATE_DIR"]
        session.environ["PATH"] = f"{Path(TPUCTL).parent}:{session.environ['PATH']}"
        session.type("sim", "up", *REAL_PACE)
        try:
            yield session
        finally:
            session.type("sim", "down")


def test_the_second_machine_of_the_page_sees_and_uses_the_fleet_of_the_first(first: Session) -> None:
    (lines,) = LINES.findall((ROOT / "docs" / "tasks" / "share-a-fleet.md").read_text(encoding="utf-8"))
    first.type("config", "init", "--store", "gs://sim-bucket/lab")
    first.type("up", "v4-8", "big", "--spot", "--pay")
    uses = "tpuctl up v4-8 other --spot --pay; tpuctl exec other -- echo hello; tpuctl store machines"
    done = subprocess.run(
        ["bash", "-e", "-c", f'{lines}\n{uses}; echo "$HOME"'],
        cwd=first.work,
        env={**first.environ, "TMPDIR": str(first.root)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"big +v4-8", done.stdout)
    assert "hello" in done.stdout
    assert len(re.findall(r"\bm[0-9a-f]{8}\b", done.stdout)) == 2
    home = Path(done.stdout.split()[-1])
    assert home != first.root
    assert {row["name"] for row in first.json("ls")} == {"big", "other"}
    assert not (home / ".local/state/tpuctl/sim/sim.json").exists()
