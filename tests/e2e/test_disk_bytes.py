"""No byte is lost on a disk: programs that check themselves write to it while it is copied, leaves its host, or
its host goes. The whole matrix in `make soak`, a sample of it in CI, and one story in `make test`."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.disk_judge import as_json
from tests.support.disk_kills import COMMANDS, end, kill, open_scene
from tests.support.disk_lab import DISK, INSTANCE, open_lab
from tests.support.disk_stories import KINDS, STORIES, tell
from tests.support.soak import long, soak

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SAMPLE: dict[tuple[str, bool], tuple[str, ...]] = {
    ("detach", True): ("append", "sqlite"),
    ("down", False): ("plain", "files", "user"),
}
"""(story, whether its writers go on) → writers."""
MOMENTS = 40
"""How often commands are killed at random moments, in all; in shares of a lab each."""
SHARE = 5
SEED = int(os.environ.get("TPUCTL_KILL_SEED", "24"))


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


@pytest.mark.parametrize(("story", "busy"), [("down", False), long("detach", True)])
def test_nothing_of_some_writers_is_lost(story: str, busy: bool) -> None:
    with open_lab() as lab:
        tell(lab, story, SAMPLE[story, busy], busy=busy)


@pytest.mark.long
def test_nothing_is_lost_of_what_was_written_on_an_instance_of_compute_engine() -> None:
    """Which is preempted and comes back with the disk, is asked for the disk, and goes."""
    with open_lab(INSTANCE) as lab:
        tell(lab, "preemption", ("append", "sqlite"), busy=True)
        lab.type("disk", "attach", DISK, "--to", "dev")
        tell(lab, "down", ("plain", "files", "user"), busy=False)


def _shares() -> list[Any]:
    """Every command as often as every other, in an order that follows from the seed."""
    names = [name for _ in range(-(-MOMENTS // len(COMMANDS))) for name in COMMANDS][:MOMENTS]
    random.Random(SEED).shuffle(names)
    shares = [names[number : number + SHARE] for number in range(0, MOMENTS, SHARE)]
    return [soak(share, f"{SEED}-{number}", id=f"share{number}") for number, share in enumerate(shares)]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("names", "seed"), _shares())
def test_commands_killed_at_random_moments_come_to_their_end(names: list[str], seed: str) -> None:
    _kill_each(names, seed)


def _kill_each(names: Sequence[str], seed: str) -> None:
    """All moments follow from the seed, as far as processes take the same time."""
    dice = random.Random(seed)
    with open_lab() as lab:
        scene = open_scene(lab, KINDS)
        for name in names:
            print(f"{name}: killed, seed {seed}")
            moment_s = kill(scene, name, dice)
            print(f"{name}: killed after {moment_s:.2f} s")
        end(scene)
        print(as_json(lab.said))
