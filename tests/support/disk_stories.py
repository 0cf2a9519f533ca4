"""What happens to a disk that programs write to, and what its bytes are worth afterwards.

Each story is told once with nothing open, where it has to succeed, and once while writers have files open.
Then a refusal counts only where the story says so, and names who holds a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.support.disk_lab import DISK, MOUNTED, SLICE, ZONE, DiskLab, check_lists, forget_slice
from tests.support.require import can_grow_ext4
from tests.support.session import Session

PARTIAL = 3
"""The exit status of what a host refuses."""
KINDS = ("append", "plain", "sqlite", "rename", "files", "mmap", "user")
TOGETHER_S = 300.0
AT_WORK = 6
"""The exit status where somebody else is at work on the same thing."""


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


def both(life: Life, *typed: tuple[Session, tuple[str, ...]]) -> list[int]:
    """Types commands at the same moment; who is refused names the disk or the slice, and types again once the
    other has ended. What each came to at first."""
    started = [session.start(*words) for session, words in typed]
    ended = [life.lab.session.finish(each, TOGETHER_S) for each in started]
    assert 0 in {each.returncode for each in ended}, [each.stderr for each in ended]
    for (session, words), each in zip(typed, ended, strict=True):
        if each.returncode:
            assert each.returncode in (PARTIAL, AT_WORK), each.stderr
            assert re.search(rf"error: .*\b({DISK}|dev)\b", each.stderr), each.stderr
            if f"has {MOUNTED}/" in each.stderr:
                life.lab.check_go_on(list(life.tags))
                life.lab.end_writers()
            session.type(*words, within_s=TOGETHER_S)
    return [each.returncode for each in ended]


def two_clones(life: Life, *others: Session) -> None:
    """One waits for the other, or is refused and succeeds when typed again."""
    for name in ("big", "two"):
        life.slice(name)
    before = life.lab.said
    first, second = (life.lab.session, *others, life.lab.session)[:2]
    both(
        life,
        (first, ("disk", "clone", DISK, "--to", "big")),
        (second, ("disk", "clone", DISK, "--to", "two")),
    )
    for name in ("big", "two"):
        life.lab.check_mounted(name, orderly=True, said=before)
    life.go_on()


def two_machines_clone(life: Life) -> None:
    two_clones(life, life.lab.join_machine())


def clone_and_detach(life: Life) -> None:
    """On two machines at once: the copy is whole, whichever came first."""
    other = life.lab.join_machine()
    life.slice("big")
    before = life.lab.said
    [_, detached] = both(
        life,
        (other, ("disk", "clone", DISK, "--to", "big")),
        (life.lab.session, ("disk", "detach", DISK, "--to", "dev")),
    )
    assert detached == (PARTIAL if life.busy else 0)
    life.lab.check_mounted("big", orderly=True, said=before)
    life.lab.check_image(orderly=True)


def clone_and_down(life: Life) -> None:
    """On two machines at once: the copy is whole, and the slice goes."""
    other = life.lab.join_machine()
    life.slice("big")
    before = life.lab.said
    both(
        life,
        (other, ("disk", "clone", DISK, "--to", "big")),
        (life.lab.session, ("down", "dev", "--yes")),
    )
    assert life.lab.nodes() == ["big-1"]
    life.lab.check_mounted("big", orderly=True, said=before)
    life.lab.check_image(orderly=True)


def detach(life: Life) -> None:
    life.refused_while_busy("disk", "detach", DISK, "--to", "dev")
    life.lab.check_image(orderly=True)


def umount(life: Life) -> None:
    life.refused_while_busy("disk", "umount", DISK, "--to", "dev")
    life.lab.check_detached(orderly=True)


def resize(life: Life) -> None:
    """Of an XFS, which grows in every container."""
    life.lab.type("disk", "resize", DISK, "--size", "20", "--yes")
    assert life.lab.size_gib() == 20
    life.go_on()


def resize_ext4(life: Life) -> None:
    """It grows under programs only for who has CAP_SYS_RESOURCE, which a container may lack. There the disk has
    grown and its file system has not, which is said, and all bytes are there."""
    grows = can_grow_ext4()
    done = life.lab.type("disk", "resize", DISK, "--size", "20", "--yes", status=0 if grows else None)
    assert life.lab.size_gib() == (20 if grows else 10)
    if not grows:
        assert done.returncode not in (0, 70), done.stderr
        said = " ".join(done.stderr.split())
        assert f"{DISK} has 20 GiB, its file system on dev has not" in said, said
    [row] = life.lab.session.json("disk", "ls")
    assert row["size_gib"] == 20
    life.go_on()


def down(life: Life) -> None:
    life.lab.type("down", "dev", "--yes")
    life.lab.check_image(orderly=True)


def ttl(life: Life) -> None:
    life.lab.apply(dev={**SLICE, "disk": [DISK], "ttl": "1h"})
    life.lab.watch_until(lambda: life.lab.nodes() == [], every_s=1200.0)
    life.lab.check_image(orderly=True)


def idle(life: Life) -> None:
    """Whoever writes is no idler; a slice on which nobody does goes."""
    life.lab.on("echo '0.00 0.00 0.00 1/9 9' > /tmp/quiet && sudo mount --bind /tmp/quiet /proc/loadavg")
    life.lab.apply(dev={**SLICE, "disk": [DISK], "stop_when_idle": "30m"})
    later_s = 0.0
    if life.busy:
        while later_s < 3600.0:
            life.lab.type("watch", "once", later_s=later_s)
            later_s += 300.0
        assert life.lab.nodes() == ["dev-1"]
        life.lab.check_go_on(list(life.tags))
        life.lab.end_writers()
    life.lab.watch_until(lambda: life.lab.nodes() == [], every_s=300.0, later_s=later_s)
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


def reap(life: Life) -> None:
    """What no slice wants any more, and may be written: no host is asked, so a person says that it is meant."""
    forget_slice(life.lab, "dev")
    refused = life.lab.type("reap", "--yes", status=PARTIAL)
    said = " ".join(refused.stderr.split())
    assert "its hosts, which are not asked, can write data" in said, said
    assert "tpuctl reap --force" in said
    assert life.lab.nodes() == ["dev-1"]
    life.lab.check_go_on(list(life.tags))
    life.lab.type("reap", "--yes", "--force")
    assert life.lab.nodes() == []
    life.lab.check_image(orderly=False)


def adopted(life: Life) -> None:
    """Who takes it over instead loses nothing."""
    forget_slice(life.lab, "dev")
    life.lab.type("adopt", "dev-1", "--zone", ZONE, "--pay")
    life.lab.type("down", "dev", "--yes")
    assert life.lab.nodes() == []
    life.lab.check_image(orderly=True)


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


STORIES: dict[str, Act] = {
    "clone": clone,
    "snapshot": snapshot,
    "crash-consistent clone": crash_consistent,
    "two clones at once": two_clones,
    "two clones from two machines": two_machines_clone,
    "clone and detach from two machines": clone_and_detach,
    "clone and down from two machines": clone_and_down,
    "detach": detach,
    "umount": umount,
    "resize": resize,
    "resize of ext4": resize_ext4,
    "down": down,
    "ttl": ttl,
    "idle": idle,
    "prune": prune,
    "replace": replace,
    "reap": reap,
    "adopt and down": adopted,
    "preemption": preempted,
    "preemption without a window": preempted_at_once,
    "host crash": crash,
    "reboot": reboot,
}


def tell(lab: DiskLab, story: str, kinds: Sequence[str], *, busy: bool, count: int = 200) -> None:
    """Lives through a story with such writers and judges what is left of their bytes; says how many items. Who
    deletes a TPU cuts its power."""
    lab.type("sim", "fault", "hard-delete")
    if story == "resize":
        lab.make_xfs()
    tags = lab.start(*kinds, options="--hold --pause 0.02") if busy else lab.write(*kinds, count=count)
    if busy:
        for tag in tags:
            lab.listener.wait_for(tag, 20)
    STORIES[story](Life(lab, tags, busy))
    check_lists(lab)
    told = lab.said.values()
    assert all(each.returned for each in told)
    synced, returned = (sum(len(getattr(each, what)) for each in told) for what in ("synced", "returned"))
    print(f"{story}, {'open' if busy else 'closed'}: {len(told)} writers, {synced} synced of {returned} items")
