"""Another machine to log in to by the real ssh, as `far`: a real sshd, a home and a crontab of its own."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support.require import require_tool
from tests.support.spool import Spool
from tpuctl.ssh.keys import ensure_keypair

ADDRESS = "127.78.2.1"
SERVER = """
ListenAddress {address}:{port}
HostKey {folder}/host/id_ed25519
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
StrictModes no
SetEnv HOME={home} PATH={path} PIP_NO_DEPS=1 TPUCTL_STATE_DIR={home}/state
"""
CLIENT = """
Host far
  HostName {address}
  Port {port}
  User {user}
  IdentityFile {key}
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
Host nowhere
  HostName {address}
  Port 1
"""
PYTHON = """#!/bin/sh
# A virtual environment made here finds the dependencies of the tests, and tpuctl only if it is installed there.
"{python}" "$@" || exit
[ "$1 $2" = "-m venv" ] || exit 0
for folder in "$3"/lib/python3.*/site-packages; do
    echo "{packages}" >"$folder/tests.pth"
done
"""


class Far:
    """What the machine has. `bin` is to be put in front of PATH here: its `ssh` knows the way."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "far-home"
        self.home.mkdir()
        self.spool = Spool(folder / "far-spool")
        self.bin = folder / "bin"
        self.path = f"{self.spool.bin}:{sys.base_prefix}/bin:/usr/bin:/bin"

    def run_cron_line(self, line: str) -> subprocess.CompletedProcess[str]:
        """As cron does it: `/bin/sh -c`, from the home directory, with hardly any environment (crontab(5))."""
        command = line.split(" ", 5)[5]
        environ = {
            "HOME": str(self.home),
            "LOGNAME": getpass.getuser(),
            "SHELL": "/bin/sh",
            "PATH": "/usr/bin:/bin",
        }
        return subprocess.run(
            ["/bin/sh", "-c", command], env=environ, cwd=self.home, capture_output=True, text=True, check=False
        )


@contextmanager
def open_far(folder: Path) -> Iterator[Far]:
    """The machine is there while this lasts. Skips without sshd and ssh."""
    sshd, ssh = require_tool("sshd"), require_tool("ssh")
    made = Far(folder)
    user_key, host_key = ensure_keypair(folder / "user"), ensure_keypair(folder / "host")
    (folder / "authorized_keys").write_text(user_key.public_line + "\n")
    host_key.private_path.rename(folder / "host" / "id_ed25519")
    with closing(socket.socket()) as probe:
        probe.bind((ADDRESS, 0))
        port = probe.getsockname()[1]
    (folder / "known_hosts").write_text(f"[{ADDRESS}]:{port} {host_key.public_line}\n")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    _program(
        made.spool.bin / version,
        PYTHON.format(python=Path(sys.base_prefix) / "bin" / version, packages=sysconfig.get_path("purelib")),
    )
    config = folder / "sshd_config"
    config.write_text(SERVER.format(address=ADDRESS, port=port, folder=folder, home=made.home, path=made.path))
    client = folder / "ssh_config"
    client.write_text(
        CLIENT.format(
            address=ADDRESS, port=port, folder=folder, user=getpass.getuser(), key=user_key.private_path
        )
    )
    made.bin.mkdir()
    _program(made.bin / "ssh", f'#!/bin/sh\nexec {ssh} -F {client} "$@"\n')
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd's privilege separation wants it
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([sshd, "-D", "-e", "-f", config], stderr=log)
    try:
        _wait_for(server, port, folder / "log")
        yield made
    finally:
        server.terminate()
        server.wait()


def _program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _wait_for(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 10
    while True:
        with closing(socket.socket()) as probe:
            if probe.connect_ex((ADDRESS, port)) == 0:
                return
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
