"""Tiers of simulated hosts, for the tests that every tier must pass and for those of one tier."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import asyncssh
import paramiko
import pytest

from tests.support.require import require_isolated_hosts
from tpuctl.sim.hosts.backend import HostAddress, HostBackend, HostSpec
from tpuctl.sim.hosts.init import give_to_hosts
from tpuctl.sim.hosts.isolated.backend import IsolatedHosts
from tpuctl.sim.hosts.process.backend import ProcessHosts

NODE = "p1/us-central2-b/big-1"

TIERS: dict[str, Callable[[Path, str], HostBackend]] = {
    "process": lambda root, world_id: ProcessHosts(root, world_id=world_id),
    "isolated": lambda root, world_id: IsolatedHosts(root, world_id=world_id),
}


def require_tier(tier: str) -> None:
    if sys.platform != "linux":
        pytest.skip("simulated hosts need Linux's 127.0.0.0/8")
    if tier == "isolated":
        require_isolated_hosts()


LIMIT_S = 120.0
"""For what takes a second where a processor is free."""


def wait_until(
    condition: Callable[[], object], seconds: float = LIMIT_S, *, what: str = "the condition"
) -> None:
    """Looks often in the beginning, and three times a second later: a look may be a command."""
    deadline, pause_s = time.monotonic() + seconds, 0.01
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true in time"
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.3)


def shared_folder(path: Path) -> Path:
    """Makes a folder into which programs of process hosts may write, who are nobody beside a root simulator."""
    path.mkdir()
    give_to_hosts(path)
    return path


@dataclass
class Lab:
    """A backend with one node of two workers and a key that may log in."""

    hosts: HostBackend
    root: Path
    key_file: Path
    public_key: str
    metadata: dict[str, str] = field(default_factory=dict)
    addresses: list[HostAddress] = field(default_factory=list)
    tier: str = "process"
    world_id: str = ""

    def spec(self, worker: int, node: str = NODE) -> HostSpec:
        return HostSpec(
            node_key=node,
            worker=worker,
            hostname=f"t1v-n-abc-w-{worker}",
            environment=lambda: {"PEERS": ",".join(each.internal_ip for each in self.addresses)},
            metadata=lambda: {
                "project/project-id": "p1",  # a server that knows nothing at all does not answer
                **{f"instance/{path}": value for path, value in self.metadata.items()},
            },
            publish=self.publish,
        )

    def publish(self, path: str, value: str | None) -> bool:
        """Guest attributes as if they were metadata of that name, unless a test turned them off."""
        if "off" in self.metadata:
            return False
        if value is None:
            self.metadata.pop(f"guest-attributes/{path}", None)
        else:
            self.metadata[f"guest-attributes/{path}"] = value
        return True

    def client(self, worker: int = 0, user: str = "alice", key: Path | None = None) -> paramiko.SSHClient:
        address = self.addresses[worker]
        client = paramiko.SSHClient()
        kind, blob = address.host_key.split()
        name = address.external_ip if address.ssh_port == 22 else f"[{address.external_ip}]:{address.ssh_port}"
        client.get_host_keys().add(name, kind, paramiko.Ed25519Key(data=base64.b64decode(blob)))
        client.connect(
            address.external_ip,
            port=address.ssh_port,
            username=user,
            key_filename=str(key or self.key_file),
            allow_agent=False,
            look_for_keys=False,
            timeout=LIMIT_S,
        )
        return client

    def run(
        self, command: str, worker: int = 0, stdin: bytes = b"", user: str = "alice"
    ) -> tuple[int, str, str]:
        with self.client(worker, user) as client:
            source, out, err = client.exec_command(command, timeout=LIMIT_S)
            source.write(stdin)
            source.channel.shutdown_write()
            output = out.read().decode(), err.read().decode()
            return out.channel.recv_exit_status(), *output

    def ssh_options(self, worker: int) -> list[str]:
        known = self.root / "known_hosts"
        address = self.addresses[worker]
        known.write_text(f"worker {address.host_key}\n")
        return [
            *("-i", str(self.key_file), "-o", f"UserKnownHostsFile={known}", "-o", "HostKeyAlias=worker"),
            *("-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes", "-o", "LogLevel=ERROR"),
            *("-o", f"Port={address.ssh_port}", "-F", "none"),
        ]

    def real(
        self, program: str, *args: str, worker: int = 0, **kw: object
    ) -> subprocess.CompletedProcess[bytes]:
        if shutil.which(program) is None:
            pytest.skip(f"OpenSSH's {program} is not on PATH")
        command = [program, *self.ssh_options(worker), *args]
        return subprocess.run(command, capture_output=True, timeout=LIMIT_S, **kw)  # type: ignore[call-overload]

    def at(self, worker: int = 0) -> str:
        return f"alice@{self.addresses[worker].external_ip}"

    def home(self, user: str = "alice", worker: int = 0) -> Path:
        """A user's home on a host of NODE as this machine sees it."""
        folder = self.root / "hosts" / quote(NODE, safe="") / str(worker)
        if self.tier == "isolated":
            return folder / "own" / ("root" if user == "root" else f"home/{user}")
        return folder / "home" / user

    def pids(self, inside: list[int], worker: int = 0) -> list[int]:
        """Processes of a host by their numbers on this machine."""
        namespace = self.run("readlink /proc/self/ns/pid", worker)[1].strip()
        return [outer_pid(namespace, pid) for pid in inside]


def outer_pid(namespace: str, pid: int) -> int:
    """What this machine calls process `pid` of a PID namespace; see NSpid in proc(5)."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(folder / "ns" / "pid") != namespace:
                continue
            numbers = (folder / "status").read_text().partition("NSpid:")[2].splitlines()[0].split()
        except OSError:
            continue  # gone meanwhile
        if int(numbers[-1]) == pid:
            return int(folder.name)
    raise AssertionError(f"no process {pid} in {namespace}")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


DAEMONS = """
nohup setsid sleep 301 > /dev/null 2>&1 < /dev/null & echo $! > p1
(env -i setsid sh -c 'sh -c "echo \\$\\$ > p2; exec sleep 302" > /dev/null 2>&1 < /dev/null &')
(env -i python3 -c '
import os, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.chdir("/")
[os.close(fd) for fd in (0, 1, 2)]
open(HOME + "/p3", "w").write(str(os.getpid()) + chr(10))
time.sleep(303)
')
while ! { test -s p1 && test -s p2 && test -s p3; }; do sleep 0.01; done
cat p1 p2 p3
"""


def daemon_script(home: str) -> str:
    """Starts three kinds of daemons and prints their pids."""
    script = DAEMONS.replace("HOME", repr(home).replace("'", '"'))
    return script.replace("(env -i python3", "(env -i $(command -v python3)")


def start_daemons(lab: Lab, worker: int = 0) -> list[int]:
    status, out, err = lab.run(daemon_script(lab.run("pwd", worker)[1].strip()), worker)
    assert (status, err) == (0, "")
    pids = lab.pids([int(line) for line in out.split()], worker)
    assert len(pids) == 3
    assert all(alive(pid) for pid in pids)
    return pids


def refuses(address: HostAddress) -> bool:
    try:
        socket.create_connection((address.external_ip, address.ssh_port), timeout=2).close()
    except OSError:
        return True
    return False


@contextmanager
def open_lab(tier: str, root: Path) -> Iterator[Lab]:
    """An empty backend of this tier below `root`/hosts, with a key that no host knows yet."""
    world_id = f"test-{uuid.uuid4().hex}"
    (root / "hosts").mkdir(exist_ok=True)
    key = asyncssh.generate_private_key("ssh-ed25519")
    key_file = root / "id"
    key.write_private_key(key_file)
    key_file.chmod(0o600)
    public = key.export_public_key().decode().strip()
    lab = Lab(TIERS[tier](root / "hosts", world_id), root, key_file, public, tier=tier, world_id=world_id)
    try:
        yield lab
    finally:
        lab.hosts.close()


def populate(lab: Lab, workers: int = 2) -> Lab:
    """One node, into which alice and root may log in."""
    lab.addresses = lab.hosts.create([lab.spec(worker) for worker in range(workers)])
    lab.hosts.set_ssh_keys(NODE, f"alice:{lab.public_key} me@home\nroot:{lab.public_key}")
    return lab
