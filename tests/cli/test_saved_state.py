"""A state directory that an earlier revision left behind is shown by this one as by that one."""

from __future__ import annotations

import json
import math
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import ROOT, Session, open_session

pytestmark = pytest.mark.slow
FOLDER = ROOT / "tests" / "data" / "saved_state"
SAID = json.loads((FOLDER / "said.json").read_text())
"""By command: its exit status, and what it printed as JSON."""


class SavedState:
    """The saved directory beside a cloud that has nothing of it left, a day after it was saved."""

    def __init__(self, session: Session) -> None:
        with tarfile.open(FOLDER / "state.tar.gz") as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and later have it
            archive.extractall(session.root / "saved")
        saved = session.root / "saved"
        (saved / "state" / "sim-project").rename(session.root / "state" / "sim" / "sim-project")
        (saved / "state" / "machine").rename(session.root / "state" / "machine")
        session.work = saved / "work"
        session.environ["TPUCTL_USER"] = "tester"
        self._session = session
        self._now = float(Path(saved / "at").read_text()) + 86_400

    def type(self, line: str) -> list[object]:
        later_s = self._now - time.time()
        done = self._session.type(*line.split(), "--json", status=None, later_s=later_s)
        return [done.returncode, json.loads(done.stdout.replace(str(self._session.root), "ROOT"))]


def alike(shown: object, said: object) -> bool:
    """The same but for numbers that grow while a command runs. Keys that came since have nothing to tell, but
    for the API, which was always that of TPUs, and the devices, which follow from the type."""
    if isinstance(shown, dict) and isinstance(said, dict):
        came = {key: value for key, value in shown.items() if value and key not in said and key != "devices"}
        return (
            shown.keys() >= said.keys()
            and came in ({}, {"api": "tpu"})
            and all(alike(shown[key], said[key]) for key in said)
        )
    if isinstance(shown, list) and isinstance(said, list):
        return len(shown) == len(said) and all(map(alike, shown, said))
    if isinstance(shown, float) and isinstance(said, float):
        return math.isclose(shown, said, rel_tol=0.01, abs_tol=0.01)
    return shown == said


@pytest.fixture(scope="module")
def state() -> Iterator[SavedState]:
    with open_session() as session:
        yield SavedState(session)


@pytest.mark.parametrize("line", SAID)
def test_what_an_earlier_revision_wrote_is_shown_as_it_showed_it(state: SavedState, line: str) -> None:
    shown = state.type(line)
    assert alike(shown, SAID[line]), shown
