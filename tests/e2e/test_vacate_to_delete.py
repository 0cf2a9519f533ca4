"""Before a host is deleted, its programs are ended and what they wrote reaches the disk; on isolated hosts.

The disk is then taken away as the cloud does it, without a word to the host, and read on another slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from tests.support.jobs import bring_up
from tests.support.require import require_isolated_hosts
from tests.support.services import SimServices, sim_services
from tests.support.sim import RunningSim, running_sim
from tpuctl.disks.attach import detach
from tpuctl.disks.clone import create_master
from tpuctl.disks.rules import DiskRules
from tpuctl.disks.use import leave_disk, use_disk
from tpuctl.disks.vacate import NextUse, Vacancy, vacate
from tpuctl.engine.ports import RemoteCall
from tpuctl.hosts.targets import host_targets
from tpuctl.model.disks import DiskRequest
from tpuctl.model.shipped_files import load_disk_rules
from tpuctl.state.repository import get_slice

ZONE = "us-central2-b"
RULES = DiskRules(load_disk_rules())
pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]
USE: dict[str, Any] = {"rw": True, "path": "/mnt/data", "mounted": True, "dry_run": False}
STAYS = "exec sleep 3600"
PRIVATE = "unshare -m --propagation private sh -c"


class Lab:
    """Two slices of one host each, and a disk that the first writes."""

    def __init__(self, sim: RunningSim, services: SimServices) -> None:
        self.sim = sim
        self.services = services
        for name in ("one", "two"):
            bring_up(services, name, accelerator_type="v4-8", hosts=1, chips=4)
        create_master(services, RULES, DiskRequest("data", ZONE, "pd-balanced", 10, {}), "data")

    def on(self, name: str, command: str) -> str:
        targets = host_targets(self.services, get_slice(self.services, name).record)
        [result] = self.services.remote.run(targets, RemoteCall(command, timeout_s=60.0))
        assert result.exit_status == 0, result
        return str(result.stdout.decode())

    def vacate(self) -> tuple[Vacancy, int]:
        """As a deletion does, in steps: what came of it, and how often the host was still at work."""
        record = get_slice(self.services, "one").record
        for number in range(100):
            soon = self.services.clock.now() + 5.0
            found = vacate(self.services, record, purpose=NextUse.DELETE, grace_s=6.0, deadline=soon)
            if found.silent:
                continue  # on a machine that has much else to do
            if not found.working:
                return found, number
            assert (found.proved, found.lost) == ((), "")
        raise AssertionError("the host does not come to an end")

    def pulled(self) -> str:
        """The sum of what is on the disk when it is taken from the host."""
        detach(self.services, ZONE, ["one-1"], "data")
        use_disk(self.services, RULES, "data", to="two", **USE)
        found = self.on("two", "sha256sum < /mnt/data/set")
        leave_disk(self.services, "data", to="two", detached=True)
        return found


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    require_isolated_hosts()
    folder: Path = tmp_path_factory.mktemp("vacated")
    with running_sim(folder, hosts="isolated") as sim, sim_services(sim, folder / "state") as services:
        yield Lab(sim, services)


@pytest.fixture
def written(lab: Lab) -> tuple[Lab, str]:
    """The disk is at /mnt/data of slice one, with a file that only its host's memory holds: its sum."""
    use_disk(lab.services, RULES, "data", to="one", **USE)
    sum_ = lab.on(
        "one",
        "sudo chmod 777 /mnt/data; head -c 3000000 /dev/urandom > /mnt/data/set && sha256sum < /mnt/data/set",
    )
    return lab, sum_


def test_programs_are_ended_and_the_disk_is_unmounted_everywhere(written: tuple[Lab, str]) -> None:
    lab, before = written
    for user, program in (
        ("nobody", f"sh -c 'exec 3>/mnt/data/open; {STAYS}'"),
        ("root", f"sh -c 'cd /mnt/data; trap \"\" TERM; {STAYS}'"),
        ("root", f"{PRIVATE} 'mount --bind /mnt/data /srv; exec 3>/srv/other; {STAYS}'"),
    ):
        lab.on("one", f"sudo -u {user} setsid -f {program} </dev/null >/dev/null 2>&1")
    image = "truncate -s 20M /mnt/data/image && mkfs.ext4 -q /mnt/data/image"
    lab.on("one", f"sudo sh -c 'mkdir -p /mnt/in && {image} && mount -o loop /mnt/data/image /mnt/in'")
    lab.on(
        "one", "sudo sh -c 'mkdir -p /mnt/bind && mount --bind /mnt/data /mnt/bind && echo in > /mnt/in/word'"
    )
    found, waits = lab.vacate()
    assert found == Vacancy(proved=("data",))
    assert waits >= 1
    assert lab.on("one", "grep -c ' /mnt/' /proc/mounts; pgrep -c -x sleep; true").split() == ["0", "0"]
    assert lab.vacate() == (found, 0)
    assert lab.pulled() == before


def test_what_a_copy_holds_still_is_left_once_it_is_let_go(written: tuple[Lab, str]) -> None:
    """Nobody who writes there is ended before, and nothing is refused."""
    lab, before = written
    agent = "import sys; sys.path.insert(0, sys.argv[1]); import freeze; print(freeze.main({}))"
    device = lab.on("one", "stat -c %Hd:%Ld /mnt/data").strip()
    hold = {"do": "hold", "id": "copy", "devices": [device], "seconds": 300}
    folder = lab.on("one", "dirname $(find ~/.tpuctl -name freeze.py | head -n 1)").strip()

    def ask(request: dict[str, Any]) -> str:
        program = agent.format(request)
        return lab.on("one", f"sudo python3 -c {quote(program)} {folder}")

    assert "'state': 'held'" in ask(hold)
    lab.on("one", "sudo setsid -f sh -c 'echo more > /mnt/data/more' </dev/null >/dev/null 2>&1")
    record, services = get_slice(lab.services, "one").record, lab.services
    for _ in range(2):
        soon = services.clock.now() + 10.0
        found = vacate(services, record, purpose=NextUse.DELETE, grace_s=6.0, deadline=soon)
        assert found == Vacancy(working=True)
    assert "'stood': True" in ask({"do": "release", "id": "copy"})
    found, _ = lab.vacate()
    assert found == Vacancy(proved=("data",))
    assert lab.pulled() == before


def test_what_cannot_be_unmounted_is_frozen_with_all_that_was_written(written: tuple[Lab, str]) -> None:
    """A program by which people log in is not ended."""
    lab, before = written
    lab.on("one", "cp /bin/sleep /tmp/sshd")
    keeps = "sh -c 'exec 3>/mnt/data/open; exec /tmp/sshd 3600'"
    lab.on("one", f"sudo setsid -f {keeps} </dev/null >/dev/null 2>&1")
    lab.on("one", "until pgrep -f '^/tmp/sshd'; do sleep 0.1; done")
    found, _ = lab.vacate()
    assert found.proved == ("data",)
    touch = "touch /mnt/data/more >/dev/null 2>&1 & sleep 1; jobs -r | grep -c touch"
    assert lab.on("one", touch).strip() == "1"
    assert lab.pulled() == before
    lab.on("one", "sudo pkill -f '^/tmp/sshd'")
