"""No byte is lost on a disk: programs that check themselves write to it while it is copied, leaves its host, or
its host goes. The whole matrix in `make soak`, a sample of it in CI."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.disk_lab import open_lab
from tests.support.disk_stories import KINDS, STORIES, tell
from tests.support.soak import soak

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]
SAMPLE: dict[tuple[str, bool], tuple[str, ...]] = {
    ("detach", True): ("append", "sqlite"),
    ("down", False): ("plain", "files", "user"),
}
"""(story, whether its writers go on) → writers."""
MOMENTS = 40
"""How often commands are killed at random moments, in all."""


def _matrix() -> list[Any]:
    return [
        soak(name, busy, id=f"{name}-{'open' if busy else 'closed'}")
        for name in STORIES
        for busy in (False, True)
    ]


@pytest.mark.parametrize(("story", "busy"), _matrix())
def test_nothing_of_seven_writers_is_lost(story: str, busy: bool) -> None:
    with open_lab() as lab:
        tell(lab, story, KINDS, busy=busy)


@pytest.mark.parametrize(("story", "busy"), list(SAMPLE))
def test_nothing_of_some_writers_is_lost(story: str, busy: bool) -> None:
    with open_lab() as lab:
        tell(lab, story, SAMPLE[story, busy], busy=busy)
