"""Many hosts on loopback addresses, behind the cheap server or behind OpenSSH's own."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.harness import BenchError, pinned
from tpuctl.ssh.keys import ensure_keypair

READY_S = 30.0
MAX_LISTEN = 16
"""Addresses of one sshd; OpenSSH 9.2 refuses more (MAX_LISTEN_SOCKS)."""
SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")

# The key exchange is that of TPU VMs with Ubuntu 22.04 (OpenSSH 8.9); that of OpenSSH 9.2 costs a client
# ten times as much.
SSHD_CONFIG = """
Port {port}
HostKey {folder}/host/ssh_ed25519
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
MaxStartups 2000
MaxSessions 2000
KexAlgorithms curve25519-sha256,curve25519-sha256@libssh.org
LogLevel ERROR
SetEnv HOME={folder}/home
"""


@dataclass(frozen=True)
class Farm:
    """Hosts with one key and one host key; also what is written for clients in other processes."""

    hosts: list[str]
    port: int
    user: str
    key: str
    public_line: str
    host_private: str
    host_public: str
    known_hosts: str

    def save(self, path: Path, count: int | None = None) -> str:
        """Writes the first `count` hosts for a client; the path."""
        path.write_text(json.dumps({**asdict(self), "hosts": self.hosts[:count]}))
        return str(path)


def _prepare(folder: Path, count: int, network: int) -> Farm:
    hosts = [f"127.{network}.{i // 250}.{i % 250 + 1}" for i in range(count)]
    own, host = ensure_keypair(folder), ensure_keypair(folder / "host")
    with closing(socket.socket()) as probe:
        probe.bind((hosts[0], 0))
        port = probe.getsockname()[1]
    known = folder / "known_hosts"
    key = " ".join(host.public_line.split()[:2])
    known.write_text("".join(f"[{address}]:{port} {key}\n" for address in hosts))
    (folder / "authorized_keys").write_text(own.public_line + "\n")
    (folder / "home").mkdir()
    private = str(own.private_path)
    return Farm(
        hosts, port, getpass.getuser(), private, own.public_line, str(host.private_path), key, str(known)
    )


@contextmanager
def cheap_farm(folder: Path, count: int) -> Iterator[Farm]:
    """The server has CPU 1 for itself."""
    farm = _prepare(folder, count, 90)
    argv = [sys.executable, "-m", "tests.bench.cheap_server", farm.save(folder / "server.json")]
    with pinned(1):
        server = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdin is not None
    try:
        if not server.stdout.readline():
            raise BenchError("the cheap server did not start")
        yield farm
    finally:
        server.kill()
        server.wait()
        server.stdin.close()
        server.stdout.close()


@contextmanager
def sshd_farm(folder: Path, count: int, cpu: int | None = None) -> Iterator[Farm]:
    """OpenSSH's servers, on `cpu` if given; commands run for real, at home in `folder`."""
    farm = _prepare(folder, count, 91)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd's privilege separation wants it
    with ExitStack() as servers:
        with pinned(cpu) if cpu is not None else nullcontext():
            for first in range(0, count, MAX_LISTEN):
                log = folder / f"sshd-{first}.log"
                servers.enter_context(_sshd(farm, folder, farm.hosts[first : first + MAX_LISTEN], log))
        for first in range(0, count, MAX_LISTEN):
            _wait_until_open(farm.hosts[first], farm.port, folder / f"sshd-{first}.log")
        yield farm


@contextmanager
def _sshd(farm: Farm, folder: Path, hosts: list[str], log: Path) -> Iterator[None]:
    config = log.with_suffix(".config")
    listen = "".join(f"ListenAddress {address}\n" for address in hosts)
    config.write_text(SSHD_CONFIG.format(port=farm.port, folder=folder) + listen)
    with log.open("wb") as errors:
        server = subprocess.Popen([str(SSHD), "-D", "-e", "-f", config], stderr=errors)
    try:
        yield
    finally:
        server.terminate()
        server.wait()


def _wait_until_open(address: str, port: int, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        with closing(socket.socket()) as probe:
            if probe.connect_ex((address, port)) == 0:
                return
        time.sleep(0.05)
    raise BenchError(f"sshd did not start: {log.read_text()[-400:]}")
