"""Commands that are killed at random moments while programs write to the disk that they are about.

Each command is a row: what has to be so before, what is typed, what must have come of it, and what brings the
lab back to where it was. Between them slice `dev` has the disk, writers write to it, and slice `big` is there.
After a kill the same words are typed again, and have to come to their end.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.disk_judge import Said
from tests.support.disk_lab import DISK, SLICE, ZONE, DiskLab, check_lists
from tests.support.disk_stories import KINDS
from tests.support.require import can_grow_ext4

AGAIN_WITHIN_S = 600.0
"""A host that is held lets go by itself after two minutes, a lease ends after one; all else is load."""
FIRST_GUESS_S = 10.0
TRIES = 6
"""A command that came to its end before its moment is tried again, with a moment within the time it took."""
NOT_FOUND = 5
OPTIONS = "--hold --pause 0.05"


@dataclass
class Scene:
    """A lab between two kills."""

    lab: DiskLab
    kinds: Sequence[str] = KINDS
    tags: list[str] = field(default_factory=list)
    before: dict[str, Said] = field(default_factory=dict)
    """What was written when the command was typed first."""
    copied: dict[str, Said] = field(default_factory=dict)
    """What was written when the newest copy was asked for."""
    size_gib: int = 10

    def write(self) -> None:
        """Writers that go on, with files open."""
        self.tags = self.lab.start(*self.kinds, options=OPTIONS)
        for tag in self.tags:
            self.lab.listener.wait_for(tag, 5)

    def rest(self) -> None:
        """Nothing writes any more, and nothing is open."""
        self.lab.end_writers()

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.lab.session.json("disk", "ls")
        return found

    def copies(self) -> list[dict[str, Any]]:
        """The newest last."""
        found = [row for row in self.rows() if row["generation"]]
        return sorted(found, key=lambda row: int(row["generation"]))

    def attach(self) -> None:
        self.lab.type("disk", "attach", DISK, "--to", "dev")
        self.write()

    def come_back(self) -> None:
        """`dev` is there again with its disk."""
        self.lab.apply(dev={**SLICE, "disk": [DISK]}, big=SLICE)
        assert self.lab.is_mounted()
        self.write()

    def check_undisturbed(self) -> None:
        """Nothing is held or refused: the writers go on."""
        self.lab.check_go_on(self.tags)
        self.lab.on("! pgrep -f 'freeze.hold_o[n]'")


Words = Sequence[str] | Callable[[Scene], Sequence[str]]


def _nothing(_scene: Scene) -> None:
    """It is as it should be."""


@dataclass(frozen=True)
class Killed:
    """A command. `check` says what must have come of it, `after` brings the scene back."""

    words: Words
    check: Callable[[Scene], None]
    before: Callable[[Scene], None] = _nothing
    after: Callable[[Scene], None] = _nothing
    status: int | None = 0
    """Of the command that was not killed; None where the host cannot do it, which `check` then says."""
    done: int = 0
    """What the command says if it was killed after all it had to do."""


def _check_copy(scene: Scene, *, orderly: bool) -> None:
    """One copy more, whole, and read by `big`."""
    scene.check_undisturbed()
    [copy] = [row for row in scene.copies() if row["used_by"]]
    assert (copy["status"], copy["used_by"]) == ("READY", ["big-1-w-0"])
    scene.lab.check_mounted("big", orderly=orderly, said=scene.before)


def _leave_copy(scene: Scene) -> None:
    [copy] = [row["name"] for row in scene.copies() if row["used_by"]]
    scene.lab.type("disk", "detach", copy, "--to", "big")
    scene.lab.type("disk", "rm", copy, "--yes")


def _check_snapshot(scene: Scene) -> None:
    scene.check_undisturbed()
    [row] = [row for row in scene.copies() if row["status"] == "snapshot only"]
    scene.lab.check_image(orderly=True, disk=row["snapshot"], kind="snapshots", said=scene.before)


def _drop_snapshot(scene: Scene) -> None:
    [row] = [row for row in scene.copies() if row["status"] == "snapshot only"]
    scene.lab.type("disk", "rm", row["name"], "--yes")


def _check_detached(scene: Scene) -> None:
    [master] = [row for row in scene.rows() if not row["generation"]]
    assert master["used_by"] == []
    scene.lab.check_image(orderly=True)


def _check_unmounted(scene: Scene) -> None:
    assert not scene.lab.is_mounted()
    [master] = [row for row in scene.rows() if not row["generation"]]
    assert [each.partition("-")[0] for each in master["used_by"]] == ["dev"]
    scene.lab.check_image(orderly=True)


def _mount(scene: Scene) -> None:
    scene.lab.type("disk", "mount", DISK, "--to", "dev")
    scene.write()


def _detach_first(scene: Scene) -> None:
    scene.rest()
    scene.lab.type("disk", "detach", DISK, "--to", "dev")


def _check_attached(scene: Scene) -> None:
    assert scene.lab.is_mounted()
    scene.lab.check_mounted("dev", orderly=True)


def _check_down(scene: Scene) -> None:
    assert [name.rpartition("-")[0] for name in scene.lab.nodes()] == ["big"]
    scene.lab.check_image(orderly=True)


def _grow(scene: Scene) -> Sequence[str]:
    return ("disk", "resize", DISK, "--size", str(scene.size_gib), "--yes")


def _grow_more(scene: Scene) -> None:
    scene.size_gib += 1


def _check_grown(scene: Scene) -> None:
    scene.check_undisturbed()
    [master] = [row for row in scene.rows() if not row["generation"]]
    assert master["size_gib"] == scene.size_gib
    assert scene.lab.size_gib() == (scene.size_gib if can_grow_ext4() else 10)


def _two_copies(scene: Scene) -> None:
    for name in ("older", "newer"):
        scene.copied = scene.lab.said
        scene.lab.type("disk", "clone", DISK, "--zone", ZONE, "--name", name)
    assert [row["name"] for row in scene.copies()] == ["older", "newer"]


def _check_collected(scene: Scene) -> None:
    scene.check_undisturbed()
    assert [row["name"] for row in scene.copies()] == ["newer"]
    scene.lab.check_image(orderly=True, disk="newer", said=scene.copied)


def _check_removed(scene: Scene) -> None:
    scene.check_undisturbed()
    assert [row["name"] for row in scene.copies()] == ["older"]


def _remove(scene: Scene) -> None:
    for row in scene.copies():
        scene.lab.type("disk", "rm", row["name"], "--yes")


def _ask_prune(scene: Scene) -> None:
    scene.lab.say(big=SLICE)


def _preempt(scene: Scene) -> None:
    scene.lab.type("sim", "preempt", scene.lab.nodes()[-1])


def _check_back(scene: Scene) -> None:
    def there() -> bool:
        [row] = [row for row in scene.lab.session.json("ls") if row["name"] == "dev"]
        return row["state"] == "ready" and scene.lab.is_mounted()

    scene.lab.watch_until(there)
    scene.lab.check_mounted("dev", orderly=True)


COMMANDS: dict[str, Killed] = {
    "clone": Killed(
        ("disk", "clone", DISK, "--to", "big"),
        lambda scene: _check_copy(scene, orderly=True),
        after=_leave_copy,
    ),
    "crash-consistent clone": Killed(
        ("disk", "clone", DISK, "--to", "big", "--crash-consistent", "--on", "big"),
        lambda scene: _check_copy(scene, orderly=False),
        after=_leave_copy,
    ),
    "snapshot": Killed(("disk", "snapshot", DISK), _check_snapshot, after=_drop_snapshot),
    "detach": Killed(
        ("disk", "detach", DISK, "--to", "dev"), _check_detached, before=Scene.rest, after=Scene.attach
    ),
    "umount": Killed(
        ("disk", "umount", DISK, "--to", "dev"), _check_unmounted, before=Scene.rest, after=_mount
    ),
    "attach": Killed(
        ("disk", "attach", DISK, "--to", "dev"), _check_attached, before=_detach_first, after=Scene.write
    ),
    "down": Killed(("down", "dev", "--yes"), _check_down, after=Scene.come_back),
    "prune": Killed(("apply", "--prune", "--yes"), _check_down, before=_ask_prune, after=Scene.come_back),
    "resize": Killed(_grow, _check_grown, before=_grow_more, status=0 if can_grow_ext4() else None),
    "gc": Killed(
        ("disk", "gc", "--keep", "1", "--yes"),
        _check_collected,
        before=_two_copies,
        after=_remove,
    ),
    "rm": Killed(
        ("disk", "rm", "newer", "--yes"), _check_removed, before=_two_copies, after=_remove, done=NOT_FOUND
    ),
    "pass": Killed(("watch", "once"), _check_back, before=_preempt, after=Scene.write),
}


def open_scene(lab: DiskLab, kinds: Sequence[str] = KINDS) -> Scene:
    """Two slices, of which one writes."""
    lab.type("sim", "fault", "hard-delete")
    lab.apply(dev={**SLICE, "disk": [DISK]}, big=SLICE)
    scene = Scene(lab, kinds)
    scene.write()
    return scene


def kill(scene: Scene, name: str, dice: random.Random) -> float:
    """One command, killed and typed again; after how long it was killed. It is tried as often as it takes to
    meet it alive."""
    command, longest = COMMANDS[name], FIRST_GUESS_S
    for _ in range(TRIES):
        command.before(scene)
        scene.before = scene.lab.said
        words = command.words(scene) if callable(command.words) else command.words
        moment_s = dice.uniform(0.0, longest)
        took_s = _cut(scene.lab, words, moment_s, command.status)
        if took_s is None:
            again = scene.lab.type(*words, status=None, within_s=AGAIN_WITHIN_S)
            assert command.status is None or again.returncode in (0, command.done), (words, again.stderr)
        else:
            longest = took_s
        command.check(scene)
        check_lists(scene.lab)
        command.after(scene)
        if took_s is None:
            return moment_s
    raise AssertionError(f"{name} ended {TRIES} times before it could be killed")


def _cut(lab: DiskLab, words: Sequence[str], moment_s: float, status: int | None) -> float | None:
    """None once it was killed with -9; how long it took, if it was quicker."""
    began = time.monotonic()
    try:
        lab.type(*words, status=status, within_s=moment_s)
    except subprocess.TimeoutExpired:
        return None
    return time.monotonic() - began


def end(scene: Scene) -> None:
    """All that was ever written is there."""
    scene.rest()
    scene.lab.check_detached(orderly=True)
    check_lists(scene.lab)
