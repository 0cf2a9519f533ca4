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
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.harness import BenchError, pinned
from tpuctl.remote.keys import ensure_keypair

READY_S = 30.0
SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")

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
    """One OpenSSH server for all addresses, on `cpu` if given; commands run for real, at home in `folder`."""
    farm = _prepare(folder, count, 91)
    config = folder / "sshd_config"
    listen = "".join(f"ListenAddress {address}\n" for address in farm.hosts)
    config.write_text(SSHD_CONFIG.format(port=farm.port, folder=folder) + listen)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd's privilege separation wants it
    with (folder / "sshd.log").open("wb") as log, pinned(cpu) if cpu is not None else nullcontext():
        server = subprocess.Popen([str(SSHD), "-D", "-e", "-f", config], stderr=log)
    try:
        _wait_until_open(farm, folder / "sshd.log")
        yield farm
    finally:
        server.terminate()
        server.wait()


def _wait_until_open(farm: Farm, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        with closing(socket.socket()) as probe:
            if probe.connect_ex((farm.hosts[-1], farm.port)) == 0:
                return
        time.sleep(0.05)
    raise BenchError(f"sshd did not start: {log.read_text()[-400:]}")
