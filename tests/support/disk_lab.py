"""A slice with a disk, writers on it that say what they write, and ways to see whether that is there."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import disk_writer
from tests.support.disk_judge import Listener, Lost, Said, as_json, judge, judge_image
from tests.support.require import require_isolated_hosts, require_tool
from tests.support.session import Session, another_machine, open_session
from tests.support.typist import gcloud_typist
from tpuctl.sim.hosts.files import memory_of
from tpuctl.sim.server import control
from tpuctl.sim.server.environment import environment
from tpuctl.state.sqlite import SqliteStore

ZONE = "us-central2-b"
DISK, MOUNTED = "data", "/mnt/data"
PROGRAM = "/tmp/disk_writer.py"
STORE = "gs://sim-bucket/lab"
WITHIN_S = 180.0
TYPED_WITHIN_S = 300.0
"""Of a command that waits for hosts, on a machine that has much else to do."""
NOBODY = 65534
SLICE: Mapping[str, Any] = {"accelerator": "v4-8", "tier": "spot", "zone": ZONE, "pay": True}
INSTANCE: Mapping[str, Any] = {**SLICE, "accelerator": "tpu7x-8", "zone": "us-central1-c", "api": "compute"}
"""A slice of one host that is an instance of Compute Engine."""


class DiskLab:
    """Slice `dev`, asked for in a fleet file, has disk `data` at /mnt/data."""

    def __init__(self, session: Session, listener: Listener, asked: Mapping[str, Any] = SLICE) -> None:
        self.session = session
        self.listener = listener
        self.type = session.type
        self.zone = str(asked["zone"])
        kind = ("--type", "hyperdisk-balanced") if asked.get("api") == "compute" else ()
        session.type("disk", "create", DISK, "--size", "10", "--zone", self.zone, *kind)
        self.apply(dev={**asked, "disk": [DISK]})

    def say(self, **slices: object) -> None:
        """What the fleet file says from now on."""
        fleet = {"fleet": {"name": "lab", "slices": slices}}
        (self.session.work / "tpuctl.yaml").write_text(json.dumps(fleet))

    def apply(self, *options: str, **slices: object) -> None:
        """The fleet file says so from now on, and it is."""
        self.say(**slices)
        self.session.type("apply", "--yes", *options, within_s=TYPED_WITHIN_S)

    def on(self, command: str, *, name: str = "dev", status: int | None = 0) -> str:
        """What the host prints."""
        done = self.session.type("exec", name, "--json", "--", "sh", "-c", command, status=status)
        found = json.loads(done.stdout)
        rows = found if isinstance(found, list) else found["workers"]
        return "".join(row["stdout"] for row in rows)

    def size_gib(self) -> int:
        """Of the file system, which is a little smaller than its disk."""
        return round(int(self.on(f"df --output=size -k {MOUNTED} | tail -n 1")) / (1 << 20))

    def join_machine(self) -> Session:
        """Another machine of the same user. From now on both have their store in a bucket."""
        self.type("config", "init", "--store", STORE)
        other = another_machine(self.session)
        other.type("config", "init", "--store", STORE, "--join")
        other.type("watch", "once")
        end = time.monotonic() + WITHIN_S
        while other.type("exec", "dev", "--", "true", status=None).returncode:
            assert time.monotonic() < end, "the hosts do not let the other machine in"
        return other

    def make_xfs(self) -> None:
        """Gives the disk, on which nothing is, a file system that somebody made and mounted by hand."""
        require_tool("mkfs.xfs")
        self.type("disk", "umount", DISK, "--to", "dev")
        device = "/dev/disk/by-id/google-persistent-disk-1"
        self.on(f"sudo mkfs.xfs -q -f {device} && sudo mount {device} {MOUNTED} && sudo chmod 1777 {MOUNTED}")

    # Writers.

    def start(
        self, *kinds: str, options: str = "", count: int | None = None, folder: str = MOUNTED
    ) -> list[str]:
        """Starts writers, all but `user` as root; their tags, once each has written something."""
        text = base64.b64encode(Path(disk_writer.__file__).read_bytes()).decode()
        lines = [
            f"echo {text} | base64 -d > {PROGRAM}",
            "python=$(command -v python3)",
            f"sudo chmod 1777 {folder}",
        ]
        tags = []
        for kind in kinds:
            tag = f"{kind}-{len(self.listener.all_said()) + len(tags) + 1}"
            limit = "" if count is None else f"--count {count}"
            # Not the login user, whose processes end with the session that started them.
            drop = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups " if kind == "user" else ""
            words = f"{PROGRAM} {kind} {folder} {self.listener.port} --tag {tag} {limit} {options}"
            lines.append(f"sudo setsid -f {drop}$python {words} </dev/null >/tmp/{tag}.log 2>&1")
            tags.append(tag)
        self.on("\n".join(lines))
        for tag in tags:
            self.listener.wait_for(tag)
        return tags

    def write(self, *kinds: str, count: int) -> list[str]:
        """Writers that come to their end and have nothing open any more."""
        tags = self.start(*kinds, options="--pause 0", count=count)
        for tag in tags:
            self.listener.wait_for(tag, end=True)
        self.await_writers()
        return tags

    def end_writers(self, name: str = "dev") -> None:
        self.on("sudo pkill -TERM -f '[d]isk_writer.py' || true", name=name)
        self.await_writers(name)

    def await_writers(self, name: str = "dev") -> None:
        """Until none lives any more."""
        self.on(
            "tries=600; while pgrep -f '[d]isk_writer.py' >/dev/null; do"
            " sleep 0.1; tries=$((tries - 1)); test $tries -gt 0 || exit 1; done",
            name=name,
        )

    def check_go_on(self, tags: list[str]) -> None:
        """Each writes more than it had."""
        for tag in tags:
            if not self.listener.said(tag).ended:
                self.listener.wait_for(tag)

    # What is there.

    @property
    def said(self) -> dict[str, Said]:
        return self.listener.all_said()

    def check_image(
        self,
        *,
        orderly: bool,
        disk: str = DISK,
        kind: str = "disks",
        said: Mapping[str, Said] | None = None,
    ) -> None:
        """Nothing is lost on a disk that no host has, or in a snapshot."""
        told = self.said if said is None else said
        _check(judge_image(self.image(disk, kind), told, orderly=orderly), told)

    def check_mounted(
        self, name: str, *, orderly: bool, path: str = MOUNTED, said: Mapping[str, Said] | None = None
    ) -> None:
        """Nothing is lost on a disk that a host has, as its programs see it."""
        told = self.said if said is None else said
        _check(judge(self.folder(name, path), told, orderly=orderly), told)

    def check_detached(self, *, orderly: bool) -> None:
        """Nothing is lost once the disk has left its host, which it does with nothing open."""
        self.type("disk", "detach", DISK, "--to", "dev")
        self.check_image(orderly=orderly)

    def folder(self, name: str, path: str) -> Path:
        """A folder of a host of one worker as this machine sees it."""
        namespace = self.on("readlink /proc/self/ns/mnt", name=name).strip()
        assert namespace.startswith("mnt:"), namespace
        for each in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(each / "ns" / "mnt") == namespace:
                    return each / "root" / path.lstrip("/")
            except OSError:
                continue  # gone meanwhile
        raise AssertionError(f"no process of {name}")

    def is_mounted(self, name: str = "dev", path: str = MOUNTED) -> bool:
        said = self.session.type("exec", name, "--", "findmnt", "-n", path, status=None)
        return said.returncode == 0 and path in said.stdout

    def image(self, disk: str, kind: str = "disks") -> Path:
        """The file behind a simulated disk or snapshot."""
        where = f"zones/{self.zone}" if kind == "disks" else "global"
        key = self.session.ask("GET", f"/compute/v1/projects/sim-project/{where}/{kind}/{disk}")["id"]
        for root in (self.session.root / "state" / "sim", memory_of(self.session.sim().world_id)):
            for found in root.glob(f"**/.disks/{key}.img"):
                return found
        raise AssertionError(f"no file of {disk}")

    # The cloud.

    def nodes(self) -> list[str]:
        """Of either API."""
        state = control.state(self.session.sim())
        return sorted(str(each["name"]).rpartition("/")[2] for each in state["nodes"] + state["instances"])

    def watch_until(self, ready: Callable[[], bool], *, every_s: float = 0.0, later_s: float = 0.0) -> None:
        """Passes of the watchdog, one after the other, the first one at `later_s`; between them its clock moves
        on by `every_s`."""
        end = time.monotonic() + WITHIN_S
        while True:
            self.session.type("watch", "once", later_s=later_s, status=None)
            if ready():
                return
            assert time.monotonic() < end, f"passes do not bring it about: {self.session.type('ls').stdout}"
            later_s += every_s


def _check(lost: list[Lost], said: Mapping[str, Said]) -> None:
    assert not lost, "\n".join([*map(str, lost), as_json(said)])


@contextmanager
def open_lab(asked: Mapping[str, Any] = SLICE) -> Iterator[DiskLab]:
    """A lab of its own, with such a slice; nothing is left of it afterwards."""
    require_isolated_hosts()
    listener = Listener()
    try:
        with open_session("--instant", "--hosts", "isolated") as session:
            yield DiskLab(session, listener, asked)
    finally:
        listener.close()


def forget_slice(lab: DiskLab, name: str) -> None:
    """The record of a slice is lost, and its TPU is not."""
    [path] = lab.session.root.glob("state/sim/sim-project/store.sqlite")
    store = SqliteStore(path)
    document = store.get(f"slices/{name}")
    assert document is not None
    store.delete(document.key, if_generation=document.generation)
    store.close()


def check_lists(lab: DiskLab) -> None:
    """The real gcloud lists the disks and snapshots that `disk ls` does, and the boot disks of instances."""
    rows = lab.session.json("disk", "ls")
    boot = {instance["name"] for instance in control.state(lab.session.sim())["instances"]}
    theirs = {kind: _gcloud_list(lab, kind) for kind in ("disks", "snapshots")}
    there = {row["name"]: row for row in rows if row["status"] == "READY"}
    listed = {each["name"]: each for each in theirs["disks"] if each["name"] not in boot}
    assert {name: (row["size_gib"], row["zone"]) for name, row in there.items()} == {
        name: (int(each["sizeGb"]), each["zone"].rpartition("/")[2]) for name, each in listed.items()
    }
    assert {name for name, row in there.items() if row["used_by"]} == {
        name for name, each in listed.items() if each.get("users")
    }
    assert {row["snapshot"] for row in rows} - {"", None} == {each["name"] for each in theirs["snapshots"]}


def _gcloud_list(lab: DiskLab, kind: str) -> list[dict[str, Any]]:
    gcloud = gcloud_typist(require_tool("gcloud"))
    home = lab.session.root / "gcloud"
    home.mkdir(exist_ok=True)
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), "CLOUDSDK_CONFIG": str(home), "LANG": "C.UTF-8"}
    variables |= environment(lab.session.sim())
    done = gcloud.type(("gcloud", "compute", kind, "list", "--format=json"), home, variables, WITHIN_S)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found
