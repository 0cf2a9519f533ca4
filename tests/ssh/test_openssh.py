"""Keys and known_hosts, judged by the real OpenSSH programs."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from tpuctl.errors import BadConfigError
from tpuctl.ssh.keys import ensure_keypair


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
