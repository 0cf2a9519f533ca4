"""Fixtures: hosts that run real commands, a real client, and the agent on top of both."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sshd import SshFarm
from tpuctl.hosts.agent import HostAgent
from tpuctl.model.cloud import HostTarget
from tpuctl.model.shipped_files import read_agent
from tpuctl.ssh.keys import KeyPair, ensure_keypair
from tpuctl.ssh.remote import SshRemote

_BUILT = tempfile.TemporaryDirectory(prefix="tpuctl-agent-")
AGENT = Path(_BUILT.name) / "agent.py"
"""The agent as one file, as it lies on hosts."""
AGENT.write_bytes(read_agent())


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return ensure_keypair(tmp_path_factory.mktemp("state"))


@pytest.fixture
def farm(tmp_path: Path, key: KeyPair) -> Iterator[SshFarm]:
    found = SshFarm(tmp_path, key.public_line)
    yield found
    found.close()


@pytest.fixture
def target(farm: SshFarm) -> HostTarget:
    return farm.add(0)


@pytest.fixture
def remote(key: KeyPair, farm: SshFarm) -> Iterator[SshRemote]:
    found = SshRemote(key.private_path)
    yield found
    found.close()


@pytest.fixture
def agent(remote: SshRemote) -> HostAgent:
    return HostAgent(remote, AGENT.read_bytes())
