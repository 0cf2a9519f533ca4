"""Hosts that exist in memory only, and the network between them; they stand behind the simulated cloud, too.

A host has an address, a host key, accepted keys and a condition; below its login there are the product's agent
(the real one, see `agent.py`) on a folder that is its file system, and processes. These move when somebody
looks: `advance`.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import itertools
import math
import os
import shlex
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from tests.support.memory.agent import Attempt, attempts_of, fence_of, module, on
from tests.support.memory.disks import HeldDisk, MemoryDisks
from tests.support.memory.process import NEVER, Process, Program, Steps
from tpuctl.engine.ports import Clock
from tpuctl.model import timeouts
from tpuctl.sim.hosts.backend import HostAddress, HostDisk, HostSpec
from tpuctl.sim.hosts.metadata import Values

SSH_PORT = 22
FIRST_PID = 1000
RAM = Path("/dev/shm")
"""Where files need no disk, if there is such a place."""
BEAT = "tpuctl/heartbeat"


class Condition(StrEnum):
    """What a client meets at a host's address."""

    UP = "up"
    REFUSING = "refusing"
    """No sshd listens: connections are refused."""
    DEAD = "dead"
    """Packets vanish: a host without power, a cut cable, a port that a firewall drops."""
    SILENT = "silent"
    """TCP connects and acknowledges, sshd says nothing: SIGSTOP."""


class MemoryHost:
    """One worker. `environment` is what a login session sees."""

    def __init__(
        self,
        network: MemoryHosts,
        *,
        hostname: str,
        internal_ip: str,
        external_ip: str,
        host_key: str,
        environment: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.network = network
        self.hostname = hostname
        self.internal_ip = internal_ip
        self.external_ip = external_ip
        self.host_key = host_key
        self.environment = environment
        self.unfit = ""
        """Why the agent cannot begin there."""
        self.accepted: set[tuple[str, str]] = set()
        """(user, base64 of the key)."""
        self.condition = Condition.UP
        self.off = False
        """The power is off; `start` brings it back."""
        self.quiet_since = NEVER
        """Since when nothing comes back over connections that were made before."""
        self.epoch = 0
        """Connections of another epoch are broken."""
        self.metadata: Callable[[], Values] = dict
        """What the metadata server answers."""
        self.publish: Callable[[str, str | None], bool] = lambda _path, _value: False
        """Writes a guest attribute, as the supervisor of a run does through the metadata server."""
        self.users_seen: list[str] = []
        self.commands_seen: list[str] = []
        self.services: dict[int, Callable[[bytes], bytes]] = {}
        """Port to a server that answers what one connection sent, for `forward`."""
        self.time = network.clock.now()
        self.user = ""
        self._pids = itertools.count(FIRST_PID)
        self.boots = 0
        self._advancing = False
        self.folder = network.folder / f"{hostname}-{next(network.made)}"
        """What is the file system to the agent."""
        self._wipe()

    def _wipe(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.devices: Sequence[HostDisk] = ()
        self.mounts: list[dict[str, object]] = []
        """Disks of its node, and where they are mounted."""
        self.holds: dict[str, HeldDisk] = {}
        """By their ids."""
        self.buckets: dict[str, dict[str, object]] = {}
        """What is mounted by gcsfuse, by its path."""
        self.full: set[str] = set()
        """Folders in which there are files."""
        self.told: dict[str, object] = {}
        """Sections of `facts` that are not as on any other host."""
        self.agents: set[str] = set()
        self.fed: dict[str, Process] = {}
        """By name of the pipe: what reads from it, once that runs."""
        self.processes: list[Process] = []
        self.beating: list[Process] = []
        """Supervisors that publish the heartbeat."""
        self.withdrawn = False
        """The last heartbeat was taken back."""
        self.watchers: set[Process] = set()
        self.changes = 0
        """How often anything has stirred."""

    # Identity.

    @property
    def boot_id(self) -> str:
        seed = f"{self.hostname} {self.host_key} {self.boots}"
        return hashlib.sha256(seed.encode()).hexdigest()[:32]

    @property
    def home(self) -> str:
        return f"{self.folder}/home/{self.user or 'user'}"

    def make_folders(self) -> None:
        """What is there on every host."""
        for path in (self.home, f"{self.folder}/shm"):
            os.makedirs(path, exist_ok=True)

    def blob(self, area: str, digest: str) -> Path:
        """Where the agent keeps a content."""
        with on(self):
            path = Path(module("contents").blob_path(area, digest))
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def blob_sizes(self) -> list[int]:
        """Of the code of runs."""
        return [path.stat().st_size for path in self.blob("blobs", "0" * 64).parent.iterdir()]

    # Processes.

    def start(
        self,
        program: Program,
        *,
        argv: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        parent: Process | None = None,
    ) -> Process:
        process = Process(self, next(self._pids), program, argv=argv, env=env, parent=parent)
        self.processes.append(process)
        return process

    def find_process(self, pid: int) -> Process | None:
        return next((each for each in self.processes if each.pid == pid and each.alive), None)

    def stir(self) -> None:
        """Wakes those that look again and again."""
        self.changes += 1
        for watcher in self.watchers:
            watcher.stir()
        self.watchers.clear()

    def attempts(self) -> list[Attempt]:
        """What the agent knows of attempts, as its own `attempts` tells it."""
        self.advance()
        return attempts_of(self)

    def fence(self, run_id: str) -> int:
        """The highest that was shown for a run."""
        return fence_of(self, run_id)

    def running(self) -> list[Attempt]:
        """Attempts whose supervisor lives."""
        return [each for each in self.attempts() if each.supervisor is not None]

    def advance(self, now: float | None = None) -> bool:
        """Brings all processes up to `now`, in the order in which things happen; whether any of them moved."""
        if self._advancing:
            return False  # a program looks at its own host
        self._advancing = True
        try:
            return self._advance(self.network.clock.now() if now is None else now)
        finally:
            self._advancing = False

    def _advance(self, target: float) -> bool:
        moved = False
        while True:
            due_at, process = min(
                ((process.due_at(), process) for process in self.processes if process.alive),
                key=lambda pair: pair[0],
                default=(NEVER, None),
            )
            if process is None or due_at > target:
                break
            self.time = max(self.time, due_at)
            process.resume()
            moved = True
        self.time = max(self.time, target)
        if moved:
            self.processes = [process for process in self.processes if process.alive]
        return moved

    def next_event(self) -> float:
        return min((process.due_at() for process in self.processes), default=NEVER)

    def login(self, user: str, command: str) -> Process:
        """What sshd does with a command of an authenticated client."""
        self.advance()
        self.user = user
        self.commands_seen.append(command)
        env = {"HOME": self.home, "USER": user, "SHELL": "/bin/bash", **self.environment()}
        return self.start(self.network.shell(self, command), argv=("sh", "-c", command), env=env)

    # Trouble.

    def refuse(self) -> None:
        """sshd is not up (yet): new connections are refused, running ones go on."""
        self.condition = Condition.REFUSING

    def hang(self) -> None:
        """SIGSTOP of sshd: whoever is connected hears nothing, whoever connects gets no banner."""
        self._go_quiet(Condition.SILENT)

    def vanish(self) -> None:
        """The cable is cut: no packet comes or goes, and nobody is told."""
        self._go_quiet(Condition.DEAD)

    def recover(self) -> None:
        """After `refuse`, `hang` or `vanish`, with everything that survived."""
        self.advance()
        self.condition = Condition.UP
        self.quiet_since = NEVER

    def cut(self) -> None:
        """Every connection breaks now, noticed on both sides; processes live on."""
        self.advance()
        self.epoch += 1

    def crash(self) -> None:
        """Every process dies, storage stays; connections break unless nobody can tell any more."""
        self.advance()
        self.beat()
        for process in list(self.processes):
            process.kill()
        self.processes.clear()
        if self.quiet_since == NEVER:
            self.epoch += 1

    def shut_down(self) -> None:
        """SIGTERM to every process, and no time beyond what they do at once."""
        self.advance()
        for process in self.processes:
            process.terminate()
        self.advance()

    def reboot(self) -> None:
        self.crash()
        self.off = False
        self.boots += 1
        self.mounts.clear()
        self.holds.clear()
        self.buckets.clear()
        self.condition = Condition.UP
        self.quiet_since = NEVER

    def die(self, condition: Condition) -> None:
        """The VM is gone with all that was on it."""
        if condition is Condition.DEAD:
            self.vanish()
        self.crash()
        self.condition = condition
        self._wipe()

    def beat(self) -> None:
        """Publishes the heartbeat as of now, as far as there are supervisors to do it. Asked for when somebody
        reads it or it is about to end: in between nobody sees it."""
        if self.condition is Condition.DEAD:
            return
        if any(each.alive for each in self.beating):
            self.publish(
                BEAT, f"{self.boot_id[:8]}-{self.network.clock.now() // timeouts.HOST_HEARTBEAT_S:.0f}"
            )
        elif self.withdrawn:
            self.publish(BEAT, None)

    def _go_quiet(self, condition: Condition) -> None:
        self.advance()
        self.beat()
        self.condition = condition
        self.quiet_since = min(self.quiet_since, self.network.clock.now())


class MemoryHosts:
    """Hosts by address; implements the simulator's `HostBackend`.

    A preempted VM vanishes without breaking its connections, as in the cloud. Addresses are used again
    once `spare_addresses` others are free.
    """

    ssh_port = SSH_PORT
    address_range = ""
    resolves = True

    def __init__(self, clock: Clock, *, spare_addresses: int = 8) -> None:
        from tests.support.memory.shell import default_programs, run_command

        self.clock = clock
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.main_thread = threading.get_ident()
        self.programs: dict[str, Program] = default_programs()
        """What can be run, by the whole command line, by a script's name, or by the first word."""
        self.shell = run_command
        self.answer_s = 0.0
        """How long every verb of the agent takes to begin."""
        self.serving: dict[tuple[str, int], Process] = {}
        self.asked_at: dict[tuple[str, int], float] = {}
        """Until when somebody fetches from a host that serves."""
        self.filtered: set[int | tuple[int, str]] = set()
        """Ports to which nothing gets from another host, or (port, name of a host) for one of these."""
        self.taken_port: int | None = None
        """Which another program has where the first worker is to serve the others."""
        self.copy_bytes_per_s = math.inf
        """How fast a host gives contents to another."""
        place = RAM if RAM.is_dir() else Path(tempfile.gettempdir())
        for left in place.glob("tpuctl-memory-*"):
            if not Path("/proc", left.name.split("-")[2]).exists():
                shutil.rmtree(left, ignore_errors=True)  # of tests that were killed
        self.folder = Path(tempfile.mkdtemp(prefix=f"tpuctl-memory-{os.getpid()}-", dir=place))
        # Not when it is collected: that may be on a thread of process hosts which acts as another user.
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self.made = itertools.count()
        self.disks = MemoryDisks(self.all, clock.now)
        self._spare = spare_addresses
        self._free: deque[int] = deque()
        self._numbers = itertools.count(1)
        self._keys = itertools.count(1)
        self._by_address: dict[str, MemoryHost] = {}
        self._nodes: dict[str, dict[int, MemoryHost]] = {}

    def set_names(self, node_key: str, names: object) -> None:
        """Nobody looks for others by their names."""

    def set_firewall(self, rules: object) -> None:
        """Nothing is filtered but what a test says."""

    def add(self, worker: int = 0, *, hostname: str = "", **more: str) -> MemoryHost:
        """A host that no simulated node stands for."""
        environment = {"TPU_WORKER_ID": str(worker), **more}
        return self._make(hostname or f"host-w-{worker}", lambda: environment)

    def find(self, address: str) -> MemoryHost | None:
        return self._by_address.get(address)

    def hosts_of(self, node_key: str) -> list[MemoryHost]:
        found = self._nodes.get(node_key, {})
        return [found[worker] for worker in sorted(found)]

    def all(self) -> list[MemoryHost]:
        return [host for workers in self._nodes.values() for host in workers.values()]

    def beat(self) -> None:
        """Every host publishes what it would have published by now."""
        for host in self.all():
            host.advance()
            host.beat()

    def find_program(self, host: MemoryHost, argv: Sequence[str]) -> Program | None:
        """What `argv` runs; None where a real host has no such file. A script's name stands for any Python."""
        name = argv[0].rsplit("/", 1)[-1]
        if name in ("sh", "bash") and argv[1:2] == ["-c"]:
            return self.shell(host, argv[2])
        words = [word for word in argv[1:] if not word.startswith("-")]
        script = words[0].rsplit("/", 1)[-1] if name.startswith("python") and words else name
        return self.programs.get(shlex.join(argv), self.programs.get(script))

    def _make(self, hostname: str, environment: Callable[[], Mapping[str, str]]) -> MemoryHost:
        number = self._free.popleft() if len(self._free) > self._spare else next(self._numbers)
        host = MemoryHost(
            self,
            hostname=hostname,
            internal_ip=f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
            external_ip=f"34.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
            host_key=make_host_key(next(self._keys)),
            environment=environment,
        )
        for address in (host.internal_ip, host.external_ip):
            self._by_address[address] = host
        return host

    def retire(self, host: MemoryHost) -> None:
        """Frees the addresses of a host that is gone."""
        self._free.append(int.from_bytes(bytes(int(n) for n in host.internal_ip.split(".")[1:]), "big"))

    # The simulator's interface.

    def publish_port(self, port: int) -> str:
        """Hosts in memory open no sockets; nothing of the simulator answers them."""
        return f"http://127.0.0.1:{port}"

    def create(self, specs: list[HostSpec]) -> list[HostAddress]:
        made = []
        with self.changed:
            for spec in specs:
                workers = self._nodes.setdefault(spec.node_key, {})
                if spec.worker not in workers:
                    workers[spec.worker] = self._make(spec.hostname, spec.environment)
                    workers[spec.worker].publish = spec.publish
                    workers[spec.worker].metadata = spec.metadata
                host = workers[spec.worker]
                made.append(HostAddress(host.internal_ip, host.external_ip, SSH_PORT, host.host_key))
        return made

    def set_ssh_keys(self, node_key: str, ssh_keys: str) -> None:
        for host in self.hosts_of(node_key):
            host.accepted = parse_ssh_keys(ssh_keys)

    def set_disks(self, node_key: str, disks: Mapping[int, Sequence[HostDisk]]) -> None:
        for worker, host in self._nodes.get(node_key, {}).items():
            self.disks.pull(host, disks.get(worker, ()))

    def write_disk(self, key: str, size_gb: int, source: str = "") -> None:
        self.disks.write(key, size_gb, source)

    def drop_disk(self, key: str) -> None:
        self.disks.drop(key)

    def kill(self, node_key: str) -> None:
        with self.changed:
            for host in self.hosts_of(node_key):
                host.die(Condition.DEAD)
            self.changed.notify_all()

    def cut(self, node_key: str) -> None:
        with self.changed:
            for host in self.hosts_of(node_key):
                host.cut()
            self.changed.notify_all()

    def shutdown(self, node_key: str, window_s: float, workers: Collection[int] | None = None) -> None:
        """In memory nobody waits: what takes time to end is cut off."""
        with self.changed:
            for host in self._chosen(node_key, workers):
                host.shut_down()
            self.changed.notify_all()

    def stop(self, node_key: str, workers: Collection[int] | None = None) -> None:
        with self.changed:
            for host in self._chosen(node_key, workers):
                host.crash()
                host.condition = Condition.REFUSING
                host.off = True
            self.changed.notify_all()

    def _chosen(self, node_key: str, workers: Collection[int] | None) -> list[MemoryHost]:
        known = self._nodes.get(node_key, {})
        return [known[worker] for worker in sorted(known) if workers is None or worker in workers]

    def start(self, node_key: str) -> None:
        for host in self.hosts_of(node_key):
            if host.off:
                host.reboot()

    def destroy(self, node_key: str) -> None:
        for host in self.hosts_of(node_key):
            self.disks.pull(host, deleted=True)
        self.kill(node_key)
        for host in self._nodes.pop(node_key, {}).values():
            self.retire(host)

    def close(self) -> None:
        for node_key in list(self._nodes):
            self.destroy(node_key)
        shutil.rmtree(self.folder)


def parse_ssh_keys(ssh_keys: str) -> set[tuple[str, str]]:
    """`USER:ssh-ed25519 AAAA… comment` lines; others are skipped, as Google's guest agent does."""
    found = set()
    for line in ssh_keys.splitlines():
        user, _, key = line.strip().partition(":")
        words = key.split()
        if user and len(words) >= 2 and words[0] == "ssh-ed25519":
            found.add((user, words[1]))
    return found


def make_host_key(number: int) -> str:
    """A line that looks like an ed25519 public key; nothing is ever signed with it."""
    raw = b"\0\0\0\x0bssh-ed25519\0\0\0 " + hashlib.sha256(f"host key {number}".encode()).digest()
    return f"ssh-ed25519 {base64.b64encode(raw).decode()}"


def idle(_process: Process) -> Steps:
    """A program that only a signal ends."""
    from tests.support.memory.process import Wait

    yield Wait()
    return 0
