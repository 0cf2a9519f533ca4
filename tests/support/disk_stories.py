"""What happens to a disk that programs write to, and what its bytes are worth afterwards.

Each story is told once with nothing open, where it has to succeed, and once while writers have files open.
Then a refusal counts only where the story says so, and names who holds a file.
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.support.disk_lab import DISK, MOUNTED, SLICE, ZONE, DiskLab, check_lists

PARTIAL = 3
"""The exit status of what a host refuses."""
KINDS = ("append", "plain", "sqlite", "rename", "files", "mmap", "user")
KILLED_WITHIN_S = 4.0
"""About as long as these commands take."""


@dataclass
class Life:
    """One telling of a story: `tags` are its writers, `busy` whether they go on and hold their files open."""

    lab: DiskLab
    tags: Sequence[str]
    busy: bool

    def slice(self, name: str) -> None:
        self.lab.type("up", "v4-8", name, "--spot", "--pay", "--zone", ZONE)

    def go_on(self) -> None:
        """The writers were not disturbed, and the disk leaves its host with all that they wrote."""
        if self.busy:
            self.lab.check_go_on(list(self.tags))
            self.lab.end_writers()
        self.lab.check_detached(orderly=True)

    def refused_while_busy(self, *words: str) -> None:
        """The command is refused as long as a file is open, says who has it open, and changes nothing."""
        if self.busy:
            said = " ".join(self.lab.type(*words, status=PARTIAL).stderr.split())
            assert re.search(rf"worker 0: \d+ python\S* of \S+ has {MOUNTED}/\S+ open", said), said
            self.lab.check_go_on(list(self.tags))
            self.lab.end_writers()
        self.lab.type(*words)


Act = Callable[[Life], None]


def clone(life: Life) -> None:
    life.slice("big")
    before = life.lab.said
    life.lab.type("disk", "clone", DISK, "--to", "big")
    life.lab.check_mounted("big", orderly=True, said=before)
    life.go_on()


def snapshot(life: Life) -> None:
    life.slice("big")
    before = life.lab.said
    life.lab.type("disk", "snapshot", DISK)
    [made] = {row["snapshot"] for row in life.lab.session.json("disk", "ls")} - {"", None}
    life.lab.type("disk", "clone", DISK, "--from-snapshot", made, "--to", "big")
    life.lab.check_mounted("big", orderly=True, said=before)
    life.go_on()


def crash_consistent(life: Life) -> None:
    life.slice("big")
    before = life.lab.said
    life.lab.type("disk", "clone", DISK, "--to", "big", "--crash-consistent", "--on", "big")
    life.lab.check_mounted("big", orderly=False, said=before)
    life.go_on()


def two_clones(life: Life) -> None:
    """One waits for the other, or is refused and succeeds when typed again."""
    for name in ("big", "two"):
        life.slice(name)
    before = life.lab.said
    started = [life.lab.session.start("disk", "clone", DISK, "--to", name) for name in ("big", "two")]
    ended = [life.lab.session.finish(each) for each in started]
    assert 0 in {each.returncode for each in ended}, [each.stderr for each in ended]
    for name, each in zip(("big", "two"), ended, strict=True):
        if each.returncode:
            assert DISK in each.stderr, each.stderr
            life.lab.type("disk", "clone", DISK, "--to", name)
        life.lab.check_mounted(name, orderly=True, said=before)
    life.go_on()


def detach(life: Life) -> None:
    life.refused_while_busy("disk", "detach", DISK, "--to", "dev")
    life.lab.check_image(orderly=True)


def umount(life: Life) -> None:
    life.refused_while_busy("disk", "umount", DISK, "--to", "dev")
    life.lab.check_detached(orderly=True)


def resize(life: Life) -> None:
    """Of an XFS, which grows in every container."""
    life.lab.type("disk", "resize", DISK, "--size", "20", "--yes")
    assert int(life.lab.on(f"df --output=size -k {MOUNTED} | tail -n 1")) > 15 << 20, "in KiB"
    life.go_on()


def down(life: Life) -> None:
    life.lab.type("down", "dev", "--yes")
    life.lab.check_image(orderly=True)


def ttl(life: Life) -> None:
    life.lab.apply(dev={**SLICE, "disk": [DISK], "ttl": "1h"})
    life.lab.watch_until(lambda: life.lab.nodes() == [], every_s=1200.0)
    life.lab.check_image(orderly=True)


def idle(life: Life) -> None:
    """Whoever writes is no idler."""
    life.lab.on("echo '0.00 0.00 0.00 1/9 9' > /tmp/quiet && sudo mount --bind /tmp/quiet /proc/loadavg")
    life.lab.apply(dev={**SLICE, "disk": [DISK], "stop_when_idle": "30m"})
    if life.busy:
        for number in range(10):
            life.lab.type("watch", "once", later_s=300.0 * number)
        assert life.lab.nodes() == ["dev-1"]
        life.go_on()
        return
    life.lab.watch_until(lambda: life.lab.nodes() == [], every_s=300.0)
    life.lab.check_image(orderly=True)


def prune(life: Life) -> None:
    life.lab.apply("--prune", other=SLICE)
    assert life.lab.nodes() == ["other-1"]
    life.lab.check_image(orderly=True)


def replace(life: Life) -> None:
    life.lab.apply("--replace", dev={**SLICE, "disk": [DISK], "tier": "on-demand"})
    assert life.lab.nodes() == ["dev-2"]
    life.lab.check_mounted("dev", orderly=True)
    life.lab.check_detached(orderly=True)


def back(life: Life, node: str, *, orderly: bool) -> None:
    """The slice is there again with its disk."""

    def there() -> bool:
        [row] = [row for row in life.lab.session.json("ls") if row["name"] == "dev"]
        return row["state"] == "ready" and life.lab.nodes() == [node] and life.lab.is_mounted()

    life.lab.watch_until(there)
    life.lab.check_mounted("dev", orderly=orderly)
    life.lab.end_writers()
    life.lab.check_detached(orderly=orderly)


def preempted(life: Life) -> None:
    life.lab.type("sim", "preempt", "dev-1")
    back(life, "dev-2", orderly=True)


def preempted_at_once(life: Life) -> None:
    life.lab.type("sim", "fault", "hard-preempt")
    life.lab.type("sim", "preempt", "dev-1")
    back(life, "dev-2", orderly=False)


def crash(life: Life) -> None:
    """A silent host: what may be lost is said, and a person has to say that it is meant."""
    life.lab.type("sim", "crash", "dev-1")
    refused = life.lab.type("down", "dev", "--yes", status=None)
    assert refused.returncode not in (0, 70), refused.stderr
    assert "--force" in refused.stderr
    assert DISK in refused.stderr
    life.lab.type("down", "dev", "--yes", "--force")
    life.lab.check_image(orderly=False)


def reboot(life: Life) -> None:
    life.lab.type("sim", "reboot", "dev-1")
    back(life, "dev-1", orderly=True)


def killed(*words: str) -> Act:
    """The command is killed at some moment and typed again until it comes to its end."""

    def act(life: Life) -> None:
        if "--to" in words and "big" in words:
            life.slice("big")
        process = life.lab.session.start(*words)
        try:
            process.wait(random.uniform(0.1, KILLED_WITHIN_S))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        if life.busy and words[1] in {"detach", "umount"}:
            life.lab.end_writers()
        life.lab.type(*words, within_s=300.0)
        if life.lab.nodes():
            life.lab.end_writers()
            life.lab.check_detached(orderly=True)
        life.lab.check_image(orderly=True)

    return act


STORIES: dict[str, Act] = {
    "clone": clone,
    "snapshot": snapshot,
    "crash-consistent clone": crash_consistent,
    "two clones at once": two_clones,
    "detach": detach,
    "umount": umount,
    "resize": resize,
    "down": down,
    "ttl": ttl,
    "prune": prune,
    "replace": replace,
    "preemption": preempted,
    "preemption without a window": preempted_at_once,
    "reboot": reboot,
}


def tell(lab: DiskLab, story: str, kinds: Sequence[str], *, busy: bool, count: int = 200) -> None:
    """Lives through a story with such writers and judges what is left of their bytes."""
    if story == "resize":
        lab.make_xfs()
    tags = lab.start(*kinds, options="--hold") if busy else lab.write(*kinds, count=count)
    if busy:
        for tag in tags:
            lab.listener.wait_for(tag, 20)
    STORIES[story](Life(lab, tags, busy))
    check_lists(lab)
