"""One isolated host: its files, its first process, its accounts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from tpuctl.errors import TpuctlError
from tpuctl.sim.hosts.backend import (
    SHUTDOWN_SCRIPT,
    WORLD_VARIABLE,
    HostAddress,
    HostDisk,
    HostSpec,
    find_script,
)
from tpuctl.sim.hosts.files import SYSTEM_PATH, wipe
from tpuctl.sim.hosts.init import children_of, try_kill
from tpuctl.sim.hosts.isolated.accounts import Accounts, sshd_config
from tpuctl.sim.hosts.isolated.data_disks import DiskFiles, HostDisks
from tpuctl.sim.hosts.isolated.loop_devices import detach_loops
from tpuctl.sim.hosts.isolated.network import Bridge, Cable
from tpuctl.sim.hosts.process.keys import AcceptedKeys

SSH_PORT = 22
BOOT_TIMEOUT_S = 60.0
"""A host boots in a tenth of a second; 64 at once on two busy cores take a while."""
POLL_S = 0.005
PROBE_S = 0.1
"""A lost first packet is sent again only after a second; asking anew is faster."""
KILL_TIMEOUT_S = 10.0
DYING_S = 10.0
"""What has been killed by SIGTERM is not held against its host because this machine is busy."""
UNMOUNT_LEAST_S = 1.0
"""However late the last program has ended: what is already on its way to a disk gets there."""


@dataclass(frozen=True)
class HostPlace:
    """What all hosts of a world share: `init` is the script that makes a host, `loops` a folder with the device
    files of loop devices, `wheels` where they share what
    was downloaded, `readable` what else of the machine's hidden directories a host sees and does not change,
    `path` what comes first on its PATH."""

    world_id: str
    init: Path
    loops: Path
    sshd: str
    wheels: Path
    readable: list[Path]
    path: str


class IsolatedHost:
    """One worker. `spawn` runs in the one thread whose end means the end of all hosts (PR_SET_PDEATHSIG)."""

    def __init__(
        self, spec: HostSpec, folder: Path, bridge: Bridge, place: HostPlace, files: DiskFiles
    ) -> None:
        self.spec = spec
        self._disks = HostDisks(files)
        self.folder = folder
        self.cable: Cable = bridge.new_cable()
        self._bridge = bridge
        self._place = place
        self._key = Ed25519PrivateKey.generate()
        self._process: subprocess.Popen[bytes] | None = None
        self._scripts: list[subprocess.Popen[bytes]] = []
        self._accounts = Accounts(folder)
        self._names: dict[str, str] = {}
        self._write_files()

    @property
    def address(self) -> HostAddress:
        public = self._key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        return HostAddress(self.cable.address, self.cable.external, SSH_PORT, public)

    @property
    def pid(self) -> int:
        """The process that holds the host's namespaces."""
        if self._process is None:
            raise TpuctlError(f"simulated host {self.spec.hostname} is off")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _write_files(self) -> None:
        for name in ("upper", "work", "merged", "own", "keys/users"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        key = self.folder / "keys" / "host_key"
        key.touch(mode=0o600)
        key.write_bytes(self._key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        config = sshd_config(SSH_PORT, mark=f"{WORLD_VARIABLE}={self._place.world_id}")
        (self.folder / "keys" / "sshd_config").write_text(config)
        (self.folder / "hosts").write_text(self._render_names())

    def _render_names(self) -> str:
        others = {name: address for name, address in self._names.items() if name != self.spec.hostname}
        rows = [
            *(("127.0.0.1", "localhost"), ("169.254.169.254", "metadata.google.internal metadata")),
            (self.cable.address, self.spec.hostname),
            *((address, name) for name, address in others.items()),
        ]
        return "".join(f"{address} {name}\n" for address, name in rows)

    def set_names(self, names: Mapping[str, str]) -> None:
        """See `HostBackend.set_names`; they outlive a reboot."""
        self._names = dict(names)
        (self.folder / "hosts").write_text(self._render_names())
        for root in self._roots()[:1]:
            (root / "etc" / "hosts").write_text(self._render_names())

    def spawn(self) -> None:
        """Starts the first process in namespaces of its own; it waits for its cable."""
        (self.folder / "plugged").unlink(missing_ok=True)
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        namespaces = ["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        address = f"{self.cable.address}/{self._bridge.network.prefixlen}"
        with (self.folder / "boot.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, "/bin/sh"),
                    str(self._place.init),
                    *(str(self.folder), self.spec.hostname, address, self.cable.external, self._bridge.gateway),
                    *(str(each) for each in (self._place.wheels, *self._place.readable)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={
                    "PATH": SYSTEM_PATH,
                    "LANG": "C.UTF-8",
                    "SSHD": self._place.sshd,
                    "LOOPS": str(self._place.loops),
                    WORLD_VARIABLE: self._place.world_id,
                },
                start_new_session=True,
            )

    def await_namespace(self) -> None:
        """Returns once the network namespace is there to plug a cable into."""
        ours = os.readlink("/proc/self/ns/net")  # noqa: PTH115 - not a path
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while time.monotonic() < deadline and self.running:
            try:
                if os.readlink(f"/proc/{self.pid}/ns/net") != ours:  # noqa: PTH115
                    return
            except FileNotFoundError:
                break
            time.sleep(POLL_S)
        raise self._failed("did not get its namespaces")

    def tell_plugged(self) -> None:
        (self.folder / "plugged").touch()

    def await_ssh(self) -> None:
        """Returns once sshd shows its banner."""
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while time.monotonic() < deadline and self.running:
            try:
                with socket.create_connection((self.cable.address, SSH_PORT), PROBE_S) as probe:
                    probe.settimeout(BOOT_TIMEOUT_S)
                    if probe.recv(4) == b"SSH-":
                        return
            except OSError:
                time.sleep(POLL_S * 4)
        raise self._failed("does not answer on its SSH port")

    def _failed(self, what: str) -> TpuctlError:
        said = (self.folder / "boot.log").read_text(errors="replace").strip().splitlines()
        why = said[-1] if said else "it said nothing"
        return TpuctlError(f"isolated host {self.spec.hostname} {what}: {why}")

    def run_script(self, key: str, overrides: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        """Starts what a key of the metadata holds, as root, without waiting for it: like Google's guest agent,
        as a file of its own. Its output goes to a log in /var/log. None where there is no script."""
        script = find_script(self.spec.metadata(), key)
        if not script:
            return None
        first = self.processes()[0]
        file = Path(f"/proc/{first}/root/run/{key}")
        file.write_text(script)
        file.chmod(0o700)
        # Through a shell, which takes a script without a first line of `#!` for its own, as bash does.
        line = f"cd; exec /bin/sh -c /run/{key} >> /var/log/{key}.log 2>&1"
        started = subprocess.Popen(
            [*("nsenter", "-t", str(first), "-m", "-u", "-i", "-n", "-p", "-r", "/bin/sh", "-c", line)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={**self.variables(overrides), "HOME": "/root"},
            start_new_session=True,
        )
        self._scripts.append(started)
        return started

    def cut(self) -> None:
        """Kills the processes of SSH connections, not what was started through them."""
        first, *others = self.processes() or [0]
        for pid in others:
            if pid != first and _is_sshd(pid):
                try_kill(pid)

    def processes(self) -> list[int]:
        """Every process of the host as the machine numbers them, its first one first."""
        if not self.running:
            return []
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
            mine = os.readlink(f"/proc/{children[0]}/ns/pid")  # noqa: PTH115
        except (OSError, IndexError):
            return []
        found = [int(children[0])]
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != found[0] and _namespace(entry, "pid") == mine:
                found.append(int(entry.name))
        return found

    def shutdown(self, window_s: float, overrides: Mapping[str, str]) -> None:
        """SIGTERM to all but process 1, the listening sshd, which ends with the power; returns when they and
        the script for this have ended and data disks are unmounted, or the time is up."""
        if not self.running:
            return
        deadline = time.monotonic() + window_s
        for pid in self.processes()[1:]:
            try_kill(pid, signal.SIGTERM)
        script = self.run_script(SHUTDOWN_SCRIPT, overrides)
        while True:
            left = self.processes()[1:]
            over_s = time.monotonic() - deadline
            ended = script is None or script.poll() is not None
            if ended and not left:
                self._unmount(max(UNMOUNT_LEAST_S, -over_s))
                return
            if over_s > (DYING_S if ended and all(map(_dies_of_term, left)) else 0.0):
                return
            time.sleep(POLL_S * 4)

    def _unmount(self, timeout_s: float) -> None:
        """Data disks, as systemd does it last of all; what is still in use stays mounted and read-only."""
        deadline = time.monotonic() + timeout_s
        for root in self._roots()[:1]:  # those of others went with their programs
            self._disks.thaw(root)
            for point in self._disks.mount_points(root):
                for words in (["umount", point], ["mount", "-o", "remount,ro", point]):
                    if self._on_host(*words, timeout_s=deadline - time.monotonic()) == 0:
                        break

    def _on_host(self, *words: str, timeout_s: float) -> int:
        """The exit status of a command in the host's mounts."""
        inside = ["nsenter", "-t", str(self.processes()[0]), "-m", "-r", *words]
        try:
            return subprocess.run(inside, capture_output=True, cwd="/", timeout=max(0.0, timeout_s)).returncode
        except subprocess.TimeoutExpired:
            return 1  # there is more to write than can be written

    def _roots(self) -> list[Path]:
        """`/` of each mount namespace of the host as the machine sees it, that of process 1 first; none while
        it is off."""
        found: dict[str, Path] = {}
        for pid in self.processes():
            found.setdefault(_namespace(Path(f"/proc/{pid}"), "mnt"), Path(f"/proc/{pid}/root"))
        return [root for name, root in found.items() if name]

    def set_disks(self, disks: Sequence[HostDisk]) -> None:
        """See `HostBackend.set_disks`; a host that is off gets them when it is started."""
        roots = self._roots()
        if roots:
            self._disks.set(roots[0], roots[1:], disks)

    def writes_to(self, key: str) -> bool:
        """Whether the host has this disk and may write to it."""
        return self.running and self._disks.writes(key)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Its programs stand still, but for those that somebody else has stopped and process 1."""
        ours: list[int] = []
        try:
            while fresh := [pid for pid in self.processes()[1:] if pid not in ours and _may_run(pid)]:
                ours += fresh
                for pid in fresh:
                    try_kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in ours:
                try_kill(pid, signal.SIGCONT)

    def grow_disk(self, key: str) -> None:
        self._disks.grow(key)

    def power_off(self) -> None:
        """Every process is dead when this returns; storage stays. TpuctlError if one does not die."""
        if self._process is None:
            return
        self._disks.cut(self._roots())
        # The kernel lets process 1 end last in its PID namespace, and its parent waits for it.
        for pid in children_of(self._process.pid) or [self._process.pid]:
            try_kill(pid)
        try:
            self._process.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise TpuctlError("a process of a simulated host does not die, not even of SIGKILL") from None
        self._process = None
        self._disks.forget()
        for script in self._scripts:
            script.kill()
            script.wait()
        self._scripts.clear()

    def variables(self, overrides: Mapping[str, str]) -> dict[str, str]:
        """What programs on the host see besides what sshd sets."""
        return {
            "PATH": self._place.path,
            "LANG": "C.UTF-8",
            "TMPDIR": "/tmp",  # noqa: S108 - the host's own
            "HOSTNAME": self.spec.hostname,
            WORLD_VARIABLE: self._place.world_id,
            "TPUCTL_SIM_HOST": f"{self.spec.node_key}/{self.spec.worker}",
            **self.spec.environment(),
            **overrides,
        }

    def rewire(self) -> None:
        """A new cable with the old addresses, for the next start."""
        fresh = self._bridge.new_cable()
        self.cable = replace(self.cable, number=fresh.number, link=fresh.link)

    def discard(self) -> None:
        self.power_off()
        detach_loops(self.folder)
        wipe(self.folder)

    def set_keys(self, accepted: AcceptedKeys, overrides: Mapping[str, str]) -> None:
        """Accounts, keys and environment, as Google's guest agent keeps them; not while the host is off."""
        if self.running:
            etc = Path(f"/proc/{self.processes()[0]}/root/etc")
            self._accounts.set_keys(accepted, self.variables(overrides), etc)


def _namespace(process: Path, kind: str) -> str:
    """Empty where the process is gone."""
    try:
        return os.readlink(process / "ns" / kind)  # noqa: PTH115
    except OSError:
        return ""


def _is_sshd(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("sshd")
    except OSError:
        return False


def _dies_of_term(pid: int) -> bool:
    """Whether SIGTERM ends it without its doing: it neither catches nor ignores nor blocks it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return True  # it is gone
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigBlk:", "SigIgn:", "SigCgt:"))]
    return not any(mask >> (signal.SIGTERM - 1) & 1 for mask in masks)


def _may_run(pid: int) -> bool:
    """Whether it is neither stopped nor dead; see proc_pid_stat(5)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TtZX"
    except OSError:
        return False
