"""The root part that holds file systems still, on real file systems: what it freezes, who lets go, and what it
refuses."""

from __future__ import annotations

import json
import os
import signal
import stat
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.require import require_isolated_hosts, require_tool

AGENT = Path(__file__).resolve().parents[2] / "tpuctl" / "agent"
RUN = """import json, sys; sys.path.insert(0, sys.argv[1]); import freeze
print(json.dumps(freeze.main(json.loads(sys.argv[2]))))"""
LIMIT_S = 60.0


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Disk:
    """A file system of its own in a file, mounted in a mount namespace of its own: other tests start with a
    copy of the mounts of this one. `ask` asks from within, or from without."""

    def __init__(self, folder: Path, kind: str, *, within: bool = True) -> None:
        image, self.path = folder / "disk", folder / "mnt"
        self.path.mkdir()
        with image.open("wb") as file:
            file.truncate(400 << 20)
        subprocess.run([f"mkfs.{kind}", "-q", str(image)], check=True, capture_output=True)
        mount = ["mount", "-o", "loop", str(image), str(self.path)]
        words = ["unshare", "-m", "sh", "-c", '"$@" && echo ready && exec sleep 600', "sh", *mount]
        self.home = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self.home.stdout is not None
        assert self.home.stdout.readline() == b"ready\n"
        self.seen = Path(f"/proc/{self.home.pid}/root{self.path}")
        self._enter = ["nsenter", "-t", str(self.home.pid), "-m"] if within else []
        number = self.seen.stat().st_dev
        self.device = f"{os.major(number)}:{os.minor(number)}"
        self.id = f"test-{uuid.uuid4().hex}"
        self._others: list[str] = []
        self._writers: list[subprocess.Popen[bytes]] = []

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        request = {"do": do, "id": self.id, "devices": [self.device], **more}
        self._others.append(request["id"])
        words = [*self._enter, sys.executable, "-I", "-S", "-B", "-c", RUN, str(AGENT), json.dumps(request)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def write(self) -> subprocess.Popen[bytes]:
        """Somebody who writes a file once; ends when the file system goes on."""
        name = self.seen / f"w{len(self._writers)}"
        self._writers.append(subprocess.Popen(["dd", "if=/dev/zero", f"of={name}", "count=1", "status=none"]))
        return self._writers[-1]

    def check_still(self) -> None:
        writer = self.write()
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(0.5)

    def check_goes_on(self) -> None:
        for each in [*self._writers, self.write()]:
            assert each.wait(LIMIT_S) == 0

    def close(self) -> None:
        for each in set(self._others):
            self.ask("release", id=each)
        subprocess.run(["fsfreeze", "-u", str(self.seen)], capture_output=True, check=False)
        for writer in self._writers:
            writer.kill()
            writer.wait(LIMIT_S)
        self.home.kill()
        self.home.wait(LIMIT_S)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    require_isolated_hosts()
    made = Disk(tmp_path, "ext4")
    yield made
    made.close()


def holder(disk: Disk) -> int:
    return int(json.loads(Path(f"/run/tpuctl-holds/{disk.id}.json").read_text())["pid"])


@pytest.mark.parametrize(("kind", "within"), [("ext4", True), ("xfs", True), ("ext4", False)])
def test_a_file_system_is_held_by_its_device_wherever_it_is_mounted(
    tmp_path: Path, kind: str, within: bool
) -> None:
    require_isolated_hosts()
    require_tool(f"mkfs.{kind}")
    disk = Disk(tmp_path, kind, within=within)
    try:
        told = disk.ask("hold", word=[".word", "of this copy"])
        assert (told["state"], told["how"], told["word"]) == ("held", "frozen", True)
        assert (disk.seen / ".word").read_text() == "of this copy\n"
        disk.check_still()
        assert disk.ask("hold")["pid"] == told["pid"]
        assert disk.ask("release") == {"stood": True}
        disk.check_goes_on()
        assert disk.ask("release") == {"stood": True}
        assert disk.ask("renew") == {"state": "ended"}
    finally:
        disk.close()


def test_a_hold_ends_by_its_own_id_and_no_other_hold_begins_beside_it(disk: Disk) -> None:
    assert disk.ask("hold")["state"] == "held"
    second = disk.ask("hold", id=f"{disk.id}-second")
    assert (second["state"], second["by"]) == ("refused", disk.id)
    assert 0 < second["seconds"] <= 120
    assert disk.ask("release", id=f"{disk.id}-second") == {"stood": False}
    disk.check_still()
    assert disk.ask("release") == {"stood": True}
    disk.check_goes_on()


def test_a_hold_that_nobody_renews_ends_by_itself(disk: Disk) -> None:
    assert disk.ask("hold", seconds=3)["state"] == "held"
    assert disk.ask("renew", seconds=4) == {"state": "held"}
    disk.check_still()
    disk.check_goes_on()
    assert disk.ask("release") == {"stood": False}


def test_what_somebody_else_froze_is_refused_before_anything_is_written(disk: Disk) -> None:
    subprocess.run(["fsfreeze", "-f", str(disk.seen)], check=True)
    told = disk.ask("hold", word=[".word", "x"])
    assert (told["state"], told["why"]) == ("refused", "somebody else has frozen its file system")
    disk.check_still()
    subprocess.run(["fsfreeze", "-u", str(disk.seen)], check=True)
    disk.check_goes_on()
    assert not (disk.seen / ".word").exists()


def test_what_the_system_or_the_login_user_needs_is_not_held(disk: Disk) -> None:
    root = os.stat("/").st_dev
    told = disk.ask("hold", devices=[f"{os.major(root)}:{os.minor(root)}"])
    assert told["state"] in ("refused", "nowhere")  # a container's has no device
    told = disk.ask("hold", homes=[str(disk.path)])
    assert (told["state"], told["why"]) == ("refused", f"{disk.path} is on it, and would stand still, too")
    disk.check_goes_on()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_holder_that_somebody_ends_leaves_nothing_frozen(disk: Disk, number: signal.Signals) -> None:
    assert disk.ask("hold")["state"] == "held"
    pid = holder(disk)
    os.kill(pid, number)
    if number == signal.SIGKILL:
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), "it is not killed")
        assert disk.ask("hold", id=f"{disk.id}-next")["state"] == "held"
        assert disk.ask("release", id=f"{disk.id}-next") == {"stood": True}
    disk.check_goes_on()


def test_who_wants_it_unmounted_gets_it_back_as_it_was(disk: Disk) -> None:
    with (disk.seen / "open").open("w"):
        told = disk.ask("hold", id=f"{disk.id}-busy", how="unmount")
        assert (told["state"], told["why"]) == (
            "refused",
            f"{disk.path} cannot be unmounted: a program uses it",
        )
    told = disk.ask("hold", how="unmount", word=[".word", "x"])
    assert (told["state"], told["how"], told["word"]) == ("held", "unmounted", True)
    assert not (disk.seen / ".word").exists()
    assert disk.ask("release") == {"stood": True}
    assert (disk.seen / ".word").read_text() == "x\n"


def test_a_device_that_nobody_has_mounted_is_held_by_nobody(disk: Disk) -> None:
    assert disk.ask("hold", devices=["7:9999"]) == {"state": "nowhere"}


def inside(disk: Disk, script: str, *words: str) -> None:
    """A script in the mount namespace of the disk."""
    enter = ["nsenter", "-t", str(disk.home.pid), "-m", "sh", "-ec", script, "sh", str(disk.path), *words]
    subprocess.run(enter, check=True, capture_output=True)


def test_what_lies_in_a_file_of_the_disk_stands_still_with_it_and_goes_on_with_it(disk: Disk) -> None:
    inside(
        disk,
        """truncate -s 400M "$1/image" && mkfs.ext4 -q "$1/image"
        mkdir -p "$1/../upper" && mount -o loop "$1/image" "$1/../upper" """,
    )
    above = Path(f"/proc/{disk.home.pid}/root{disk.path.parent}/upper")
    try:
        assert disk.ask("hold")["state"] == "held"
        with subprocess.Popen(["touch", str(above / "new")]) as writer:
            with pytest.raises(subprocess.TimeoutExpired):
                writer.wait(0.5)
            assert disk.ask("release") == {"stood": True}
            assert writer.wait(LIMIT_S) == 0
        disk.check_goes_on()
    finally:
        inside(disk, 'umount "$1/../upper"')


def erofs() -> bytes:
    """An empty file system of a kind that can only be read, and that the kernel cannot freeze."""
    size, inode = 4096, 36  # a number of 32 bytes each, behind the superblock
    names = struct.pack("<QHBBQHBB", inode, 24, 2, 0, inode, 25, 2, 0) + b"..."
    root = struct.pack("<4H4I2HI", 0, 0, stat.S_IFDIR | 0o755, 2, len(names), 0, 1, 1, 0, 0, 0)
    head = struct.pack("<3I2BHQQ4I", 0xE0F5E1E2, 0, 0, 12, 0, inode, 1, 0, 0, 2, 0, 0).ljust(128, b"\0")
    return (bytes(1024) + head + root).ljust(size, b"\0") + names.ljust(size, b"\0")


def test_what_can_only_be_read_stands_still_without_being_frozen(disk: Disk) -> None:
    (disk.seen / "image").write_bytes(erofs())
    inside(disk, 'mkdir -p "$1/../upper" && mount -t erofs -o loop "$1/image" "$1/../upper"')
    try:
        told = disk.ask("hold", word=[".word", "of this copy"])
        assert (told["state"], told["word"], len(told["files"])) == ("held", True, 2)
        disk.check_still()
        assert disk.ask("release") == {"stood": True}
        disk.check_goes_on()
        wait_until(lambda: not Path(f"/proc/{told['pid']}").exists(), "its handles are open")
    finally:
        inside(disk, 'umount "$1/../upper"')


@pytest.mark.parametrize("how", ["freeze", "unmount"])
def test_what_cannot_be_reached_is_not_called_held(disk: Disk, how: str) -> None:
    """Something else is mounted over it, and stays."""
    inside(disk, 'mount -t tmpfs none "$1"')
    try:
        told = disk.ask("hold", how=how)
    finally:
        inside(disk, 'umount -t tmpfs "$1"')
    assert (told["state"], told["why"]) == ("refused", f"something else is mounted over it at {disk.path}")
    disk.check_goes_on()


def test_what_the_kernel_holds_for_nobody_that_is_seen_is_not_called_unmounted(
    disk: Disk, tmp_path: Path
) -> None:
    """A mount namespace that a file keeps, and no process: nobody's mounts show it.

    The kernel binds no namespace that is older than the one around it, and tells their age by numbers of which
    each processor has a stock of its own: on one of the processors a new one is younger.
    """
    inside(disk, 'mkdir "$2" && mount --bind "$2" "$2" && mount --make-private "$2"', str(tmp_path / "kept"))
    kept = tmp_path / "kept" / "space"
    inside(
        disk,
        """touch "$2"
        for cpu in $(seq 0 "$(nproc --all)"); do
            taskset -c "$cpu" unshare --mount="$2" --propagation private true && break
        done
        umount "$1" """,
        str(kept),
    )
    try:
        told = disk.ask("hold")
    finally:
        inside(disk, 'umount "$2" && umount "${2%/*}"', str(kept))
    assert (told["state"], told.get("why", "")[:19]) == ("refused", "the kernel holds it")


def test_holds_that_begin_together_clear_old_ones_away_together(tmp_path: Path) -> None:
    for number in range(2000):
        old = tmp_path / f"old-{number}.lease"
        old.touch()
        os.utime(old, (0, 0))
    clear = """import sys; sys.path.insert(0, sys.argv[1])
import freeze; freeze.FOLDER = sys.argv[2]; freeze.forget()"""
    command = [sys.executable, "-I", "-S", "-B", "-c", clear, str(AGENT), str(tmp_path)]
    together = [subprocess.Popen(command) for _ in range(4)]
    assert [each.wait() for each in together] == [0, 0, 0, 0]
    assert not list(tmp_path.iterdir())
