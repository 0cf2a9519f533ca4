"""Keys and known_hosts, judged by the real OpenSSH programs."""

from __future__ import annotations

import shutil
import stat
import subprocess
import threading
from pathlib import Path

import asyncssh
import pytest
from msgspec.structs import replace

from tests.support.sshd import SshFarm
from tpuctl.errors import BadConfigError
from tpuctl.model.cloud import HostTarget
from tpuctl.ssh.keys import KeyPair, ensure_keypair
from tpuctl.ssh.openssh import ssh_argv, write_known_hosts

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="the OpenSSH client is not on PATH")


def ssh(target: HostTarget, key: KeyPair, known_hosts: Path) -> subprocess.CompletedProcess[bytes]:
    argv = ssh_argv(target, key.private_path, known_hosts, ["-T", "--", "echo in; exit 3"])
    return subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)


@needs_ssh
def test_the_real_ssh_logs_in_with_the_pinned_key(
    farm: SshFarm, target: HostTarget, key: KeyPair, tmp_path: Path
) -> None:
    known_hosts = tmp_path / "a folder" / "known_hosts"
    write_known_hosts(known_hosts, [farm.add(1), target])
    done = ssh(target, key, known_hosts)
    assert (done.returncode, done.stdout) == (3, b"in\n"), done.stderr


@needs_ssh
def test_the_real_ssh_refuses_another_host_key(
    farm: SshFarm, target: HostTarget, key: KeyPair, tmp_path: Path
) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
    write_known_hosts(tmp_path / "known_hosts", [replace(target, host_key=other)])
    done = ssh(target, key, tmp_path / "known_hosts")
    assert done.returncode == 255
    assert farm.users_seen == []


def test_the_key_is_made_once_and_private(tmp_path: Path) -> None:
    first = ensure_keypair(tmp_path / "state")
    assert ensure_keypair(tmp_path / "state") == first
    assert stat.S_IMODE(first.private_path.stat().st_mode) == 0o600
    assert first.public_line.startswith("ssh-ed25519 AAAA")
    assert first.public_line.endswith(" tpuctl")
    assert [path.name for path in (tmp_path / "state").iterdir()] == [first.private_path.name]


def test_makers_at_the_same_time_agree_on_one_key(tmp_path: Path) -> None:
    lines: list[str] = []
    threads = [
        threading.Thread(target=lambda: lines.append(ensure_keypair(tmp_path).public_line)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines) == 8
    assert len(set(lines)) == 1


def test_a_damaged_key_is_a_readable_error(tmp_path: Path) -> None:
    (tmp_path / "ssh_ed25519").write_text("no key")
    with pytest.raises(BadConfigError, match="cannot read the SSH key"):
        ensure_keypair(tmp_path)
