"""The transport and the session against OpenSSH's own server."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.ssh.conftest import AGENT
from tpuctl.engine.ports import RemoteCall
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.commands import SILENCE_S
from tpuctl.lib.standard_input import find_input
from tpuctl.model.cloud import FailureKind, HostTarget
from tpuctl.ssh.keys import KeyPair, ensure_keypair
from tpuctl.ssh.remote import SshRemote

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
pytestmark = pytest.mark.skipif(SSHD is None, reason="OpenSSH's sshd is not installed")

CONFIG = """
ListenAddress 127.78.1.1:{port}
HostKey {key}
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
SetEnv HOME={folder}/home
"""


def answers(target: HostTarget) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex((target.address, target.port)) == 0


@pytest.fixture
def target(tmp_path: Path, key: KeyPair) -> Iterator[HostTarget]:
    host = ensure_keypair(tmp_path / "host")
    (tmp_path / "home").mkdir()
    (tmp_path / "authorized_keys").write_text(key.public_line + "\n")
    with closing(socket.socket()) as probe:
        probe.bind(("127.78.1.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "sshd_config"
    config.write_text(CONFIG.format(port=port, key=host.private_path, folder=tmp_path))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd's privilege separation wants it
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen([str(SSHD), "-D", "-e", "-f", config], stderr=log)
    found = HostTarget("big", 0, "127.78.1.1", port, getpass.getuser(), host.public_line)
    deadline = time.monotonic() + 10
    while not answers(found):
        assert server.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield found
    server.terminate()
    server.wait()


def test_commands_failures_and_signals_as_with_any_server(target: HostTarget, key: KeyPair) -> None:
    with closing(SshRemote(key.private_path)) as remote:
        data = os.urandom(3_000_000)
        [result] = remote.run([target], RemoteCall("cat; echo e >&2; exit 3", stdin=data))
        assert (result.exit_status, result.stdout == data, result.stderr) == (3, True, b"e\n")
        assert remote.run([target], RemoteCall("kill -9 $$"))[0].failure is FailureKind.SIGNAL
        wrong = replace(target, host_key=key.public_line)
        assert remote.run([wrong], RemoteCall("true"))[0].failure is FailureKind.HOST_KEY


@pytest.mark.slow
def test_input_that_waits_for_its_command_ends_no_session(
    target: HostTarget, key: KeyPair, tmp_path: Path
) -> None:
    """Longer than a session stands silence, and more than all buffers on the way hold."""
    (tmp_path / "given").write_bytes(bytes(9_000_000))
    heard: list[bytes] = []
    with closing(SshRemote(key.private_path)) as remote, (tmp_path / "given").open("rb") as file:
        given = find_input(file.fileno())
        assert given is not None
        result = HostAgent(remote, AGENT.read_bytes()).session_fed(
            target, ["sh", "-c", f"sleep {SILENCE_S + 2}; wc -c"], given, lambda *said: heard.append(said[2])
        )
        assert (result.exit_status, b"".join(heard)) == (0, b"9000000\n")
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 9_000_000
    assert not any((tmp_path / "home/.tpuctl/incoming").iterdir())


def test_a_session_takes_its_daemons_along(target: HostTarget, key: KeyPair, tmp_path: Path) -> None:
    heard: list[bytes] = []
    with closing(SshRemote(key.private_path)) as remote:
        HostAgent(remote, AGENT.read_bytes()).session(
            [target],
            "setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 1; done' & wait",
            lambda worker, name, data: heard.append(data),
            grace_s=0.2,
            should_stop=lambda: bool(heard),
        )
    assert (tmp_path / "home/.tpuctl/bin").is_dir()
    daemon = int(b"".join(heard))
    deadline = time.monotonic() + 10
    while Path(f"/proc/{daemon}").exists():
        if time.monotonic() > deadline:
            os.kill(daemon, signal.SIGKILL)
            pytest.fail("the daemon outlived its session")
        time.sleep(0.05)
