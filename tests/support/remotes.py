"""Places to run one suite of the `Remote` port against: real sshd, both tiers of simulated hosts, and memory.

A lab has hosts that understand the same commands; in memory they are Python programs of the same meaning.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from tests.support.clocks import FakeClock
from tests.support.memory.host import MemoryHost, MemoryHosts
from tests.support.memory.remote import MemoryRemote
from tests.support.proc import command_lines, descendants, name_of
from tests.support.real_lab import RealLab, count_logins, stopped
from tests.support.vocabulary import MEANINGS
from tpuctl.engine.ports import Clock, Remote
from tpuctl.model.cloud import HostTarget
from tpuctl.sim.hosts.backend import HostBackend, HostSpec
from tpuctl.sim.hosts.isolated.backend import IsolatedHosts
from tpuctl.sim.hosts.metadata import Values
from tpuctl.sim.hosts.process.backend import ProcessHosts
from tpuctl.ssh.keys import KeyPair, ensure_keypair

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
SILENCE_S = 2.0


class Lab(Protocol):
    """Hosts and the key that opens them."""

    stack: ExitStack
    clock: Clock

    def add(self, worker: int) -> HostTarget: ...

    def remote(self, **options: float) -> Remote:
        """A client with the enrolled key; `silence_s` may be set."""
        ...

    def stranger(self) -> Remote:
        """A client whose key no host accepts."""
        ...

    def read(self, target: HostTarget, name: str) -> str:
        """A file in the host's home directory; empty if it is not there."""
        ...

    def logins(self, target: HostTarget) -> int:
        """How often somebody named a user to this host."""
        ...

    def unreachable(self) -> HostTarget:
        """A target that drops packets."""
        ...

    def mute(self) -> HostTarget:
        """A target that accepts connections and says nothing."""
        ...

    def refuse(self, target: HostTarget) -> HostTarget:
        """The target at a port where nobody listens."""
        ...

    def cut(self, target: HostTarget) -> None:
        """Breaks the connections to a host; its processes live on."""
        ...

    def hang(self, target: HostTarget) -> contextlib.AbstractContextManager[None]:
        """The host's sshd says nothing while this lasts."""
        ...

    def serve(self, target: HostTarget, answer: bytes) -> int:
        """A server on a port of the host that answers `answer` to each connection; the port."""
        ...

    def until(self, condition: Callable[[], bool], what: str) -> None: ...

    def close(self) -> None: ...


class MemoryLab:
    """Hosts in memory, and a time that nobody waits for."""

    def __init__(self, folder: Path, key: KeyPair) -> None:
        del folder
        self.stack = ExitStack()
        self.clock = FakeClock()
        self.hosts = MemoryHosts(self.clock)
        self.stack.callback(self.hosts.close)
        self.hosts.programs.update(MEANINGS)
        self.metadata: dict[str, str] = {}
        """What the metadata server of every host answers, by path."""
        self._key = key
        self._login = ("tester", key.public_line.split()[1])

    def add(self, worker: int) -> HostTarget:
        host = self.hosts.add(worker)
        host.metadata = lambda: self.metadata
        host.accepted.add(self._login)
        return HostTarget("big", worker, host.external_ip, 22, "tester", host.host_key, host.internal_ip)

    def host(self, target: HostTarget) -> MemoryHost:
        found = self.hosts.find(target.address)
        assert found is not None
        return found

    def remote(self, **options: Any) -> Remote:
        made = MemoryRemote(self.hosts, self._key.public_line, **options)
        self.stack.callback(made.close)
        return made

    def stranger(self) -> Remote:
        return MemoryRemote(self.hosts, "ssh-ed25519 AAAAstranger")

    def read(self, target: HostTarget, name: str) -> str:
        host = self.host(target)
        host.advance()
        path = Path(host.home, name)
        return path.read_text() if path.is_file() else ""

    def logins(self, target: HostTarget) -> int:
        return len(self.host(target).users_seen)

    def unreachable(self) -> HostTarget:
        target = self.add(90)
        self.host(target).vanish()
        return target

    def mute(self) -> HostTarget:
        target = self.add(91)
        self.host(target).hang()
        return target

    def refuse(self, target: HostTarget) -> HostTarget:
        return replace(target, port=2222)

    def cut(self, target: HostTarget) -> None:
        self.host(target).cut()

    def reboot(self, target: HostTarget) -> None:
        self.host(target).shut_down()
        self.host(target).reboot()

    def kill_supervisor(self, target: HostTarget) -> None:
        [attempt] = self.host(target).attempts()
        assert attempt.supervisor is not None
        attempt.supervisor.kill()

    @contextmanager
    def hang(self, target: HostTarget) -> Iterator[None]:
        self.host(target).hang()
        yield
        self.host(target).recover()

    def serve(self, target: HostTarget, answer: bytes) -> int:
        self.host(target).services[6006] = lambda _asked: answer
        return 6006

    def until(self, condition: Callable[[], bool], what: str) -> None:
        for _ in range(100):
            if condition():
                return
            self.clock.sleep(0.1)
        raise AssertionError(f"{what} did not happen")

    def close(self) -> None:
        self.stack.close()


class SimulatedLab(RealLab):
    """The simulator's hosts of the process tier, one node each."""

    def __init__(self, folder: Path, key: KeyPair) -> None:
        super().__init__(folder, key)
        (folder / "hosts").mkdir()
        world_id = f"remotes-{uuid.uuid4().hex}"  # what a world keeps in memory is wiped when it closes
        self.hosts = self.stack.enter_context(closing(ProcessHosts(folder / "hosts", world_id=world_id)))
        self.metadata: dict[str, str] = {}

    def add(self, worker: int) -> HostTarget:
        return _single(self.hosts, worker, self.key, lambda: self.metadata)

    def reboot(self, target: HostTarget) -> None:
        """In order: programs are told to end before the power goes."""
        node = f"n{target.worker}"
        self.hosts.shutdown(node, 10.0)
        self.hosts.stop(node)
        self.hosts.start(node)

    def kill_supervisor(self, target: HostTarget) -> None:
        """That of the only attempt on the host."""
        [status] = (self.folder / "hosts" / f"n{target.worker}").rglob("status.json")
        os.kill(json.loads(status.read_text())["supervisor"]["pid"], signal.SIGKILL)

    def read(self, target: HostTarget, name: str) -> str:
        found = list((self.folder / "hosts" / f"n{target.worker}").rglob(name))
        return found[0].read_text() if found else ""

    def logins(self, target: HostTarget) -> int:
        raise NotImplementedError("the process tier keeps no log of its clients")

    def cut(self, target: HostTarget) -> None:
        self.hosts.cut(f"n{target.worker}")

    def hang(self, target: HostTarget) -> contextlib.AbstractContextManager[None]:
        raise NotImplementedError("hosts of the process tier share one event loop with all others")

    def close(self) -> None:
        self.stack.close()


def _single(hosts: HostBackend, worker: int, key: KeyPair, metadata: Callable[[], Values] = dict) -> HostTarget:
    """A new node of one host, into which `tester` may log in."""
    spec = HostSpec(f"n{worker}", worker, f"w-{worker}", lambda: {"TPU_WORKER_ID": str(worker)}, metadata)
    [address] = hosts.create([spec])
    hosts.set_ssh_keys(spec.node_key, f"tester:{key.public_line}")
    return HostTarget("big", worker, address.external_ip, address.ssh_port, "tester", address.host_key)


ANSWERER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    with connection:
        connection.recv(100)
        connection.sendall(sys.argv[1].encode())
"""


class IsolatedLab(RealLab):
    """The simulator's hosts of the isolated tier, one node each: a lost host is a cable that was pulled out."""

    def __init__(self, folder: Path, key: KeyPair) -> None:
        super().__init__(folder, key)
        (folder / "hosts").mkdir()
        world_id = f"remotes-{uuid.uuid4().hex}"
        self.hosts = self.stack.enter_context(closing(IsolatedHosts(folder / "hosts", world_id=world_id)))

    def add(self, worker: int) -> HostTarget:
        return _single(self.hosts, worker, self.key)

    def read(self, target: HostTarget, name: str) -> str:
        path = Path(f"/proc/{self._first(target)}/root/home/tester/{name}")
        return path.read_text() if path.exists() else ""

    def logins(self, target: HostTarget) -> int:
        return count_logins(Path(f"/proc/{self._first(target)}/fd/2").read_text())

    def unreachable(self) -> HostTarget:
        target = self.add(91)
        self.hosts.set_cable("n91", 91, plugged=False)
        return target

    def mute(self) -> HostTarget:
        target = self.add(90)
        self.stack.enter_context(self.hang(target))
        return target

    def refuse(self, target: HostTarget) -> HostTarget:
        return replace(target, port=2222)  # its ports are its own: nobody else listens there

    def cut(self, target: HostTarget) -> None:
        self.hosts.cut(f"n{target.worker}")

    def hang(self, target: HostTarget) -> contextlib.AbstractContextManager[None]:
        processes = self.hosts.processes(f"n{target.worker}", target.worker)
        return stopped([pid for pid in processes if name_of(pid).startswith("sshd")])

    def serve(self, target: HostTarget, answer: bytes) -> int:
        inside = ("nsenter", "--target", str(self._first(target)), "--net")
        server = self.stack.enter_context(
            subprocess.Popen([*inside, sys.executable, "-c", ANSWERER, answer], stdout=subprocess.PIPE)
        )
        self.stack.callback(server.kill)
        assert server.stdout is not None
        return int(server.stdout.readline())

    def close(self) -> None:
        self.stack.close()

    def _first(self, target: HostTarget) -> int:
        """The host's sshd: its first process, whose root is the host's."""
        return self.hosts.processes(f"n{target.worker}", target.worker)[0]


CONFIG = """
ListenAddress {address}:{port}
HostKey {key}
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
LogLevel VERBOSE
AllowTcpForwarding yes
SetEnv HOME={home} TPU_WORKER_ID={worker}
"""


class SshdLab(RealLab):
    """OpenSSH's own server, one per host."""

    def __init__(self, folder: Path, key: KeyPair) -> None:
        super().__init__(folder, key)
        self._servers: dict[int, subprocess.Popen[bytes]] = {}
        (folder / "authorized_keys").write_text(key.public_line + "\n")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd's privilege separation wants it

    def add(self, worker: int) -> HostTarget:
        address, home = f"127.78.2.{worker + 1}", self.folder / f"home-{worker}"
        home.mkdir()
        host = ensure_keypair(self.folder / f"host-{worker}")
        with closing(socket.socket()) as probe:
            probe.bind((address, 0))
            port = probe.getsockname()[1]
        config = self.folder / f"sshd_config-{worker}"
        config.write_text(
            CONFIG.format(
                address=address,
                port=port,
                key=host.private_path,
                folder=self.folder,
                home=home,
                worker=worker,
            )
        )
        with self._log(worker).open("wb") as log:
            server = subprocess.Popen([str(SSHD), "-D", "-e", "-f", config], stderr=log, start_new_session=True)
        self._servers[worker] = server
        self.stack.callback(self._end, worker)
        target = HostTarget("big", worker, address, port, getpass.getuser(), host.public_line)
        self.until(lambda: _answers(target), f"sshd on {address}")
        return target

    def read(self, target: HostTarget, name: str) -> str:
        path = self.folder / f"home-{target.worker}" / name
        return path.read_text() if path.exists() else ""

    def logins(self, target: HostTarget) -> int:
        return count_logins(self._log(target.worker).read_text())

    def cut(self, target: HostTarget) -> None:
        for pid in self._sessions(target.worker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def hang(self, target: HostTarget) -> contextlib.AbstractContextManager[None]:
        return stopped([self._servers[target.worker].pid, *self._sessions(target.worker)])

    def close(self) -> None:
        self.stack.close()

    def _log(self, worker: int) -> Path:
        return self.folder / f"log-{worker}"

    def _sessions(self, worker: int) -> list[int]:
        """sshd's processes for single connections; what they started has another name."""
        server = self._servers[worker].pid
        return [pid for pid in descendants(server) if name_of(pid).startswith("sshd")]

    def _end(self, worker: int) -> None:
        server = self._servers.pop(worker)
        for pid in [*descendants(server.pid), server.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        server.wait()


def _answers(target: HostTarget) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex((target.address, target.port)) == 0


LABS: dict[str, Callable[[Path, KeyPair], Any]] = {
    "memory": MemoryLab,
    "simulated": SimulatedLab,
    "isolated": IsolatedLab,
    "sshd": SshdLab,
}


def is_running(lab: Lab, target: HostTarget, command: str) -> bool:
    """Whether a process with this command line lives on the host."""
    if isinstance(lab, MemoryLab):
        host = lab.host(target)
        host.advance()
        return any(command in process.argv for process in host.processes if process.alive)
    mine = command.encode()
    return any(mine in line.split(b"\0") for line in command_lines())
