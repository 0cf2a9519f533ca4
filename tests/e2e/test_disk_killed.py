"""`disk clone` killed at every step of its journey, on isolated hosts with real file systems: no host stays
held, nothing is half made without an owner, and the same command comes to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.support.crashing import Crash, Crashing, CrashPoint
from tests.support.jobs import bring_up, run_to_end
from tests.support.require import require_isolated_hosts
from tests.support.services import ProcessByProcess, SimServices
from tests.support.sim import RunningSim, running_sim
from tests.support.soak import soak
from tpuctl.disks import hosts
from tpuctl.disks.clone import clone, create_master
from tpuctl.disks.make import list_records
from tpuctl.disks.remove import check_removable, remove_disk, unused_copies
from tpuctl.disks.rules import DiskRules
from tpuctl.disks.thing import DISKS
from tpuctl.disks.use import leave_disk, use_disk
from tpuctl.engine.ports import RemoteCall
from tpuctl.errors import UsageError
from tpuctl.model.cloud import OWNER_LABEL
from tpuctl.model.disks import MASTER_LABEL, DiskRequest
from tpuctl.model.requests import CloneRequest
from tpuctl.model.shipped_files import load_disk_rules
from tpuctl.provenance.keep import keep_run, release_run
from tpuctl.provenance.parts import load_manifest
from tpuctl.runs.take_down import take_down
from tpuctl.state.repository import get_slice

ZONE = "us-central2-b"
RULES = DiskRules(load_disk_rules())
WRITER = (
    "cd /mnt/data; exec 9>> open; while :; do"
    " dd if=/dev/urandom of=new bs=64k count=4 conv=fsync && mv new busy; sleep 0.05; done"
)
"""It always has a file open, so its file system can only be frozen; it leaves time for others in between."""
NOSY = (
    "echo $$ > /tmp/nosy; while :; do"
    ' for each in $(grep -o "/[^ ]*/work/look" /proc/mounts); do cd $each && sleep 3; cd /; done; done'
)
"""It stays for a while in whatever is mounted in the folder of a job."""
IS_HELD = """sudo sh -c 'grep -qs "state.: .held" /run/tpuctl-holds/*.json'"""
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]


class Lab(ProcessByProcess):
    """A dev box with a disk that somebody writes to all the time, a slice of two hosts, and one process after
    the other on one machine."""

    def __init__(self, sim: RunningSim, folder: Any) -> None:
        super().__init__(sim, folder)
        with self.process() as services:
            for name, kind in (("dev", "v4-8"), ("big", "v4-16")):
                many = 2 if name == "big" else 1
                bring_up(services, name, accelerator_type=kind, hosts=many, chips=4 * many)
            create_master(services, RULES, DiskRequest("data", ZONE, "pd-balanced", 10, {}), "data")
            use = {"rw": True, "path": "", "mounted": True, "dry_run": False}
            use_disk(services, RULES, "data", to="dev", **use)
            self.on(services, "dev", "head -c 300000 /dev/urandom > /mnt/data/set && sync")
            started = f"setsid -f sh -c '{WRITER}' </dev/null >/dev/null 2>&1"
            self.on(services, "dev", f"sudo {started}")

    def clone(self, services: SimServices) -> None:
        clone(services, RULES, CloneRequest("data", to="big"))

    def killed(self, put: Callable[[SimServices], None]) -> bool:
        """A clone that dies where `put` says; whether it did."""
        with self.process() as services:
            put(services)
            with suppress(Crash):
                self.clone(services)
                return False
        return True

    def finish(self) -> None:
        """The same command again makes one copy that is that of its master, and everything is given back."""
        with self.process() as services:
            self.check_owned(services)
            self.clone(services)
            [copy] = [each for each in list_records(services) if each.generation]
            assert copy.complete
            shown = self.on(services, "big", "sudo blkid -p -s UUID -o value $(findmnt -no SOURCE /mnt/data)")
            assert {each.strip() for each in shown} == {copy.fs_uuid} != {""}
            seen = [{"disk /mnt/data": "data-g1", "disk /mnt/data uuid": copy.fs_uuid}] * 2
            [row] = DISKS.manifest(services, get_slice(services, "big").record, seen)
            assert row == {
                "name": "data-g1",
                "path": "/mnt/data",
                "mode": "ro",
                "master": "data",
                "generation": 1,
                "snapshot": None,
                "fs_uuid": copy.fs_uuid,
                "seen_by": 2,
                "type": "pd-balanced",
            }
            self.check_owned(services)
            [first] = self.on(services, "dev", "sha256sum < /mnt/data/set")
            assert self.on(services, "big", "sha256sum < /mnt/data/set") == [first, first]
            self.on(services, "big", "! touch /mnt/data/x 2>/dev/null")
            self.on(services, "dev", f"! {IS_HELD} && touch /mnt/data/goes-on")

    def check_owned(self, services: SimServices) -> None:
        """Whatever is in the cloud has a record and its labels."""
        known = {each.name: each for each in list_records(services)}
        for disk in services.disks.list_disks().items:
            assert disk.name in known
            assert disk.labels[MASTER_LABEL] == "data"
        for snapshot in services.disks.list_snapshots():
            assert snapshot.name in {each.snapshot for each in known.values()}
        assert len([each for each in known.values() if each.generation]) <= 1
        assert {node.labels.get(OWNER_LABEL) is not None for node in services.cloud.list_nodes().items} == {
            True
        }

    def clear(self) -> None:
        """As before the clone."""
        with self.process() as services:
            for each in list_records(services):
                if each.generation:
                    leave_disk(services, each.name, to="big", detached=True)
            for each in unused_copies(services, 0).records:
                remove_disk(services, each.name)
            assert [each.name for each in services.disks.list_disks().items] == ["data"]
            assert services.disks.list_snapshots() == ()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    require_isolated_hosts()
    folder = tmp_path_factory.mktemp("killed")
    with running_sim(folder, hosts="isolated") as sim:
        yield Lab(sim, folder)


class DyingRemote:
    """The way to the hosts, on which `point` comes around what begins an operation of this kind there."""

    def __init__(self, inner: Any, point: CrashPoint, kind: str) -> None:
        self._inner = inner
        self._point = point
        self._kind = kind.encode()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, targets: Any, call: RemoteCall) -> Any:
        if self._point.dead:  # nor does it tidy up
            raise Crash("already dead")
        said = call.stdin(targets[0]) if callable(call.stdin) else call.stdin
        sent = said if isinstance(said, bytes) else b"".join(each or b"" for each in said)
        if str(call.command).endswith(" provision") and self._kind in sent:
            return self._point.around(self._inner.run, targets, call)
        return self._inner.run(targets, call)


STEPS = {
    "the hold": "hold_disk",
    "the copy": "create_disk",
    "the release": "release_disk",
    "the attachment": "set_data_disks",
    "the mount": "mount_disk",
}
"""In their order."""


def dying(step: str, when: str) -> Callable[[SimServices], None]:
    """Puts a crash before or after a step."""
    point, what = CrashPoint(1, after=when == "after"), STEPS[step]

    def put(services: SimServices) -> None:
        services.remote = DyingRemote(services.remote, point, what)
        services.disks = Crashing(services.disks, point, lambda name, _: name == what)
        services.cloud = Crashing(services.cloud, point, lambda name, _: name == what)

    return put


class Held:
    """A clone has died while it held the file system of `dev`."""

    def __init__(self, lab: Lab, services: SimServices) -> None:
        self._lab = lab
        self._services = services
        lab.on(services, "dev", IS_HELD)
        self._before = self.written()
        time.sleep(1.0)
        assert self.written() == self._before, "it was not held"

    def written(self) -> list[str]:
        """When the writer last brought a file to its end."""
        return self._lab.on(self._services, "dev", "stat -c '%i %z' /mnt/data/busy")

    def check_goes_on(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while self.written() == self._before and time.monotonic() < deadline:
            time.sleep(0.5)
        assert self.written() != self._before
        self._lab.on(self._services, "dev", f"! {IS_HELD}")


@pytest.mark.parametrize("when", [soak("before"), "after"])
def test_killed_at_every_step_in_turn_the_same_command_comes_to_its_end(lab: Lab, when: str) -> None:
    """A hold that ended before its copy was seen to have begun makes another copy of it."""
    for step in STEPS:
        assert lab.killed(dying(step, when)), step
        if step == "the copy":
            with lab.process() as services:
                held = Held(lab, services)
                lab.on(services, "dev", "sudo pkill -f 'freeze.hold_o[n]'")
                held.check_goes_on(30.0)
    lab.finish()
    lab.clear()


def test_whoever_goes_into_every_mount_does_not_stop_a_clone(lab: Lab) -> None:
    with lab.process() as services:
        lab.on(services, "big", f"setsid -f sh -c '{NOSY}' </dev/null >/dev/null 2>&1")
        try:
            clone(services, RULES, CloneRequest("data", to="big"), deadline=services.clock.now() + 900)
        finally:
            lab.on(services, "big", "kill $(cat /tmp/nosy)")
        lab.on(services, "big", "! grep /work/look /proc/mounts && grep -q ' /mnt/data ext4 ro' /proc/mounts")
    lab.clear()


def test_a_copy_stays_while_a_run_is_kept(lab: Lab) -> None:
    with lab.process() as services:
        lab.clone(services)
        [copy] = [each.name for each in list_records(services) if each.generation]
        assert unused_copies(services, 0).records == ()
        with pytest.raises(UsageError, match=f"{copy} is attached"):
            check_removable(services, copy)
        check_kept(services)
        assert get_slice(services, "big").record.spec.disks == ()


def check_kept(services: SimServices) -> None:
    """The copy of `big` stays while a run that used it is kept, and goes then."""
    run = run_to_end(services, "big", "print(open('/mnt/data/set', 'rb').read() != b'')")
    [manifest] = load_manifest(services, run.id)["attempts"]
    assert [(row["name"], row["generation"]) for row in manifest["disks"]] == [("data-g1", 1)]
    leave_disk(services, "data-g1", to="big", detached=True)
    assert keep_run(services, run, services.store.now() + 3600).disks == ("data-g1",)
    assert unused_copies(services, 0).records == ()
    with pytest.raises(UsageError, match=f"data-g1 is kept for run {run.id}"):
        check_removable(services, "data-g1")
    services.clock.skip(3700.0)
    assert [each.name for each in unused_copies(services, 0).records] == ["data-g1"]
    keep_run(services, run, None)
    assert unused_copies(services, 0).records == ()
    assert release_run(services, run)
    assert not release_run(services, run)
    for each in unused_copies(services, 0).records:
        remove_disk(services, each.name)
    assert [each.name for each in services.disks.list_disks().items] == ["data"]


def calls_of_clone(lab: Lab, to: str) -> int:
    """Of Google's APIs, for a clone that is attached and mounted."""
    with lab.process() as services:
        calls = CrashPoint()
        services.cloud = Crashing(services.cloud, calls, lambda *_: True)
        services.disks = Crashing(services.disks, calls, lambda *_: True)
        clone(services, RULES, CloneRequest("data", to=to))
        [copy] = [each.name for each in list_records(services) if each.generation]
        leave_disk(services, copy, to=to, detached=True)
        for each in unused_copies(services, 0).records:
            remove_disk(services, each.name)
    return calls.count


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_clone_for_32_hosts_takes_the_calls_of_one_for_two(lab: Lab) -> None:
    with lab.process() as services:
        bring_up(services, "wide", accelerator_type="v4-256", hosts=32, chips=128)
    two, wide = calls_of_clone(lab, "big"), calls_of_clone(lab, "wide")
    with lab.process() as services:
        take_down(services, "wide")
    # Polls of what is waited for come on top; nothing is asked per host.
    assert wide < two + 32


@pytest.mark.soak
def test_a_hold_ends_by_itself_in_its_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "HOLD_S", 45)
    assert lab.killed(dying("the copy", "before"))
    with lab.process() as services:
        Held(lab, services).check_goes_on(90.0)
    lab.finish()
    lab.clear()
