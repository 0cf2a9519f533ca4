"""Isolated hosts: machines of their own as far as clients and programs can tell, and nothing left behind."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from tests.support.proc import descendants
from tests.support.require import require_isolated_hosts
from tpuctl.errors import ConflictError, UsageError
from tpuctl.sim.hosts.backend import HostSpec
from tpuctl.sim.hosts.files import memory_of, tag_of
from tpuctl.sim.hosts.isolated import requirements
from tpuctl.sim.hosts.isolated.backend import IsolatedHosts
from tpuctl.sim.hosts.isolated.loop_devices import attached_loops
from tpuctl.sim.hosts.isolated.network import Bridge, remove_network
from tpuctl.sim.server import control
from tpuctl.sim.server.options import SimOptions
from tpuctl.sim.server.processes import alive, members

WORLD = f"test-{os.getpid()}"


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    require_isolated_hosts()


def spec(worker: int, **environment: str) -> HostSpec:
    values = {"TPU_WORKER_ID": str(worker), **environment}
    return HostSpec(
        node_key="node/1",
        worker=worker,
        hostname=f"t1v-n-{worker}",
        environment=lambda: values,
        metadata=lambda: {"instance/id": f"id-{worker}"},
    )


def test_simulators_that_begin_at_once_have_networks_of_their_own() -> None:
    places: dict[int, list[str]] = {}
    for number in range(4000):
        world = f"{WORLD}-{number}"
        places.setdefault(int(tag_of(world), 16) % 512, []).append(world)
    worlds = max(places.values(), key=len)  # each begins to look at the same place
    try:
        with ThreadPoolExecutor(len(worlds)) as pool:
            found = list(pool.map(Bridge, worlds))
        assert len({bridge.network for bridge in found}) == len(worlds) > 8
    finally:
        for world in worlds:
            remove_network(world)


class Fleet:
    """Two hosts and a key that opens them."""

    def __init__(self, hosts: IsolatedHosts, folder: Path) -> None:
        self.hosts = hosts
        self.addresses = [each.internal_ip for each in hosts.create([spec(0, NOTE="a b"), spec(1)])]
        self.key = folder / "id"
        subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", self.key], check=True)
        self.accept("ada")

    def accept(self, *users: str) -> None:
        public = self.key.with_suffix(".pub").read_text()
        self.hosts.set_ssh_keys("node/1", "".join(f"{user}:{public}" for user in users))

    def words(self, command: str, worker: int = 0, user: str = "ada") -> list[str]:
        options = (
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
            "BatchMode=yes",
        )
        words = [word for option in options for word in ("-o", option)]
        return ["ssh", "-F", "none", "-i", str(self.key), *words, f"{user}@{self.addresses[worker]}", command]

    def ssh(self, command: str, worker: int = 0, user: str = "ada") -> str:
        words = self.words(command, worker, user)
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("isolated")
    hosts = IsolatedHosts(folder, world_id=WORLD)
    try:
        yield Fleet(hosts, folder)
    finally:
        hosts.close()


def links(world_id: str) -> list[str]:
    shown = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in shown.splitlines() if tag_of(world_id) in line]


def eventually(check: Callable[[], bool], timeout_s: float = 20.0) -> None:
    end = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.05)


def test_every_host_is_a_machine_of_its_own(fleet):
    facts = "hostname; cat /proc/sys/kernel/random/boot_id; id -un; ls /proc | grep -c '^[0-9]*$'"
    first, second = fleet.ssh(facts).splitlines(), fleet.ssh(facts, 1).splitlines()
    assert (first[0], second[0]) == ("t1v-n-0", "t1v-n-1")
    assert first[1] != second[1] != Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert first[2] == "ada"
    assert int(first[3]) < 20


def test_the_login_user_may_become_root_and_use_devices(fleet):
    assert fleet.ssh("sudo -n id -u; test -c /dev/fuse && echo fuse; test -b /dev/loop0 && echo loop") == (
        "0\nfuse\nloop"
    )


def test_what_hosts_are_shown_is_read_by_every_user_wherever_it_lies(tmp_path):
    """Such as certificates below a home that is root's alone and not in /root."""
    hosts = IsolatedHosts(tmp_path, world_id=f"{WORLD}-shown")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as home:
        shown = Path(home) / "state" / "tls"
        shown.mkdir(parents=True)
        (shown / "ca.pem").write_text("trust")
        try:
            hosts.show(shown)
            fleet = Fleet(hosts, tmp_path)
            assert fleet.ssh(f"cat {shown}/ca.pem") == "trust"
            assert fleet.ssh("test -w $TPUCTL_WHEEL_CACHE && echo shared") == "shared"
        finally:
            hosts.close()
        assert Path(home).stat().st_mode & 0o777 == 0o700


def test_root_of_a_host_does_not_change_the_python_of_the_machine(fleet):
    """Of Pythons below /usr a host has its own copy; of others it sees the machine's."""
    script = "import sys; open(sys.base_prefix + '/mark-of-a-host', 'w')"
    said = fleet.ssh(f'python=$(command -v python3); sudo "$python" -c "{script}" 2>&1 | tail -n 1; echo tried')
    assert said.endswith("tried")
    assert not (Path(sys.base_prefix) / "mark-of-a-host").exists()


def test_files_and_processes_of_one_host_are_not_on_the_other(fleet):
    fleet.ssh("echo mine > /tmp/note; echo mine > /var/tmp/tpuctl-note; sudo -n touch /etc/only-here")
    assert fleet.ssh("ls /tmp /var/tmp/tpuctl-note /etc/only-here 2>/dev/null; true", 1) == "/tmp:"
    assert not Path("/etc/only-here").exists()
    fleet.ssh("setsid sleep 31917 > /dev/null 2>&1 &")
    assert fleet.ssh("pgrep -c sleep || true", 1) == "0"


def test_hosts_reach_each_other(fleet):
    other = fleet.addresses[1]
    assert "SSH-2.0" in fleet.ssh(f"exec 3<>/dev/tcp/{other}/22; head -1 <&3")


def test_power_off_keeps_files_and_power_on_is_a_new_boot_at_the_same_address(fleet):
    boot = fleet.ssh("touch ~/kept; cat /proc/sys/kernel/random/boot_id")
    fleet.hosts.stop("node/1")
    assert fleet.hosts.processes("node/1", 0) == []
    fleet.hosts.start("node/1")
    fleet.accept("ada")
    kept, again = fleet.ssh("ls ~; cat /proc/sys/kernel/random/boot_id").splitlines()
    assert kept == "kept"
    assert again != boot


def test_a_cut_of_connections_leaves_what_they_started(fleet):
    fleet.ssh("setsid sleep 41917 > /dev/null 2>&1 &")
    held = subprocess.Popen(fleet.words("sleep 600"), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    eventually(lambda: fleet.ssh("pgrep -fc '^sleep 600' || true") == "1")
    fleet.hosts.cut("node/1")
    assert held.wait(timeout=20) == 255
    assert fleet.ssh("pgrep -fc '^sleep 41917'") == "1"


def test_disks_in_files_can_be_mounted_and_go_with_their_host(tmp_path):
    hosts = IsolatedHosts(tmp_path, world_id=f"{WORLD}-loops")
    try:
        hosts.create([spec(0)])
        init = hosts.processes("node/1", 0)[0]
        inside = ["nsenter", "--target", str(init), "--all", "--root", "sh", "-ec"]
        script = "cd /root; for f in /root/disk /srv/disk; do truncate -s 8M $f; losetup --show -f $f; done"
        done = subprocess.run([*inside, script], capture_output=True, text=True, check=True)
        devices = {Path(line) for line in done.stdout.split()}
        assert len(devices) == 2
        assert devices <= set(attached_loops())
        mount = f"mkfs.ext4 -q {min(devices)}; mount {min(devices)} /mnt; echo kept > /mnt/note; umount /mnt"
        subprocess.run([*inside, mount], check=True, capture_output=True)
        hosts.kill("node/1")
        eventually(lambda: not devices & set(attached_loops()))
    finally:
        hosts.close()


def test_a_killed_host_is_silent_and_leaves_nothing(tmp_path):
    """Also where another cable has a lower address than its own, which the kernel makes at random."""
    world = f"{WORLD}-killed"
    hosts = IsolatedHosts(tmp_path, world_id=world)
    try:
        (address,) = hosts.create([spec(0)])
        bridge, cable = sorted(links(world))
        subprocess.run(
            ["ip", "link", "set", cable.partition("@")[0], "address", "02:00:00:00:00:01"], check=True
        )
        shown = subprocess.run(["ip", "-4", "neigh", "show", "dev", bridge], capture_output=True, text=True)
        assert address.internal_ip in shown.stdout
        hosts.kill("node/1")
        with pytest.raises(TimeoutError):
            socket.create_connection((address.internal_ip, 22), timeout=1.5)
        assert len(links(world)) == 1
        assert sorted(each.name for each in tmp_path.iterdir()) == [".init.sh", ".loops"]
    finally:
        hosts.close()
    assert links(world) == []
    assert list(tmp_path.iterdir()) == []


def create_node(info: control.SimInfo) -> None:
    body = json.dumps({"acceleratorType": "v4-16", "runtimeVersion": "tpu-ubuntu2204-base"}).encode()
    request = Request(
        f"{info.http}/v2/projects/{info.project}/locations/us-central2-b/nodes?nodeId=n1",
        data=body,
        headers={"authorization": f"Bearer {info.token}", "content-type": "application/json"},
    )
    build_opener(ProxyHandler({})).open(request, timeout=60).read()
    eventually(lambda: [node["state"] for node in control.state(info)["nodes"]] == ["READY"])


def namespaces(pids: list[int]) -> set[str]:
    """Of these processes, except those that this machine has for itself."""
    found = set()
    for pid, kind in itertools.product(pids, ("net", "mnt", "pid", "uts", "ipc")):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
    return found - {os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "mnt", "pid", "uts", "ipc")}


def network_of(world: str) -> ipaddress.IPv4Network:
    """The network of a simulator's hosts, by the address of their bridge."""
    words = ["ip", "-j", "address", "show", "dev", f"tpb{tag_of(world)}"]
    [bridge] = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    [address] = [each for each in bridge["addr_info"] if each["family"] == "inet"]
    network = ipaddress.IPv4Network(f"{address['local']}/{address['prefixlen']}", strict=False)
    assert any(line.startswith(f"blackhole {network} ") for line in blackholes())
    return network


def blackholes() -> list[str]:
    shown = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
    return [line for line in shown.splitlines() if line.startswith("blackhole")]


def attach_loop(processes: list[int]) -> Path:
    """A loop device that a program on some host attached, to a file of that host."""
    ours = os.readlink("/proc/self/ns/pid")
    inside = next(pid for pid in processes if os.readlink(f"/proc/{pid}/ns/pid") != ours)
    script = "truncate -s 8M /var/tmp/disk; losetup --show -f /var/tmp/disk"
    command = ["nsenter", "--target", str(inside), "--all", "--root", "sh", "-ec", script]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


@pytest.mark.parametrize("how", ["down", "kill -9", "kill -9 of all"])
def test_nothing_is_left_of_a_simulator_with_hosts(tmp_path, how):
    info = control.up(tmp_path, SimOptions(delays="instant", hosts="isolated"))
    try:
        mine = network_of(info.world_id)
        create_node(info)
        theirs = descendants(info.pid)
        used = namespaces(theirs)
        assert len(used) == 2 * 5
        device = attach_loop(theirs)
        held = attached_loops()[device]
        if how == "kill -9 of all":  # then the next `down` or `up` has the work to do
            os.kill(info.guardian_pid, signal.SIGKILL)
        if how != "down":
            os.kill(info.pid, signal.SIGKILL)
        if how == "kill -9 of all":
            eventually(lambda: not alive(info.pid) and not alive(info.guardian_pid))
        if how != "kill -9":
            control.down(tmp_path)
        eventually(lambda: not list(tmp_path.glob("w-*")))
        assert links(info.world_id) == []
        assert members(info.world_id) == []
        assert not memory_of(info.world_id).exists()
        eventually(lambda: not used & namespaces([int(each.name) for each in Path("/proc").glob("[0-9]*")]))
        assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
        assert attached_loops().get(device) != held  # others may have it by now
        shown = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
        assert f"tpb{tag_of(info.world_id)}" not in shown
        others = subprocess.run(["ip", "-4", "address"], capture_output=True, text=True, check=True).stdout
        if f"inet {mine[1]}/" not in others:  # another simulator may have it by now
            assert not [line for line in blackholes() if line.startswith(f"blackhole {mine} ")]
    finally:
        control.down(tmp_path)


def test_a_simulator_with_other_hosts_is_not_taken_for_one_with_isolated_ones(tmp_path):
    control.up(tmp_path, SimOptions(delays="instant"))
    try:
        with pytest.raises(ConflictError, match="hosts process, not isolated"):
            control.up(tmp_path, SimOptions(delays="instant", hosts="isolated"))
    finally:
        control.down(tmp_path)


def test_a_machine_that_cannot_is_told_why(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="need root") as raised:
        SimOptions(hosts="isolated").check()
    assert raised.value.hint is not None
    monkeypatch.undo()
    monkeypatch.setattr(requirements, "SYSTEM_PATH", "/nowhere")
    with pytest.raises(UsageError, match="isolated hosts need ip, unshare"):
        SimOptions(hosts="isolated").check()
