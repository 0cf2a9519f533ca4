"""The walks of the architecture page: each is what the command does, in that order, as a tracer sees it."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.support.session import open_session

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/develop/architecture.md").read_text(encoding="utf-8")
WALKS = re.findall(r"^## The walk of `tpuctl ([^`\n]+)`$\n(.*?)(?=^## )", PAGE, flags=re.MULTILINE | re.DOTALL)
BEFORE = {"up": (), "run": ("up v4-32 --spot --pay",)}
"""What has to be typed before the command of a walk."""
MORE = {"up": ("--pay",)}
"""What it is given on top: the page speaks to who has a grant."""


def hops_of(walk: str) -> list[tuple[str, str]]:
    """The file and the function of each step."""
    hops = re.findall(r"^\d+\. `(\S+\.py)`: `(\w+)`", walk, flags=re.MULTILINE)
    assert len(hops) == len(re.findall(r"^\d+\. ", walk, flags=re.MULTILINE))
    return hops


@pytest.mark.parametrize(("command", "walk"), WALKS, ids=[command.split()[0] for command, _ in WALKS])
def test_a_walk_is_what_the_command_does_in_this_order(command: str, walk: str, tmp_path: Path) -> None:
    hops, words = hops_of(walk), shlex.split(command)
    assert len(hops) < 12
    program = (sys.executable, str(ROOT / "tests/support/traced.py"), str(tmp_path / "calls"))
    with open_session() as session:
        for typed in BEFORE[words[0]]:
            session.type(*typed.split())
        done = session.finish(session.start(*words, *MORE.get(words[0], ()), program=program))
    assert done.returncode == 0, done.stderr
    called = [tuple(each) for each in json.loads((tmp_path / "calls").read_text())]
    assert [each for each in called if each in hops] == hops
