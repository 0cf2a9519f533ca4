"""Transport and agent against the simulator's hosts: the same behaviour, through a preemption too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.ssh.conftest import AGENT
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.protocol import WorkerState
from tpuctl.model.cloud import FailureKind, HostTarget
from tpuctl.sim.hosts.backend import HostSpec
from tpuctl.sim.hosts.process.backend import ProcessHosts
from tpuctl.ssh.keys import KeyPair
from tpuctl.ssh.remote import SshRemote


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.05)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[ProcessHosts]:
    (tmp_path / "hosts").mkdir()
    with closing(ProcessHosts(tmp_path / "hosts", world_id="ssh-tests")) as found:
        yield found


def environment_of(worker: int) -> Callable[[], dict[str, str]]:
    return lambda: {"TPU_WORKER_ID": str(worker)}


def make(hosts: ProcessHosts, key: KeyPair, node_key: str, count: int) -> list[HostTarget]:
    specs = [
        HostSpec(node_key, worker, f"{node_key}-{worker}", environment_of(worker), dict)
        for worker in range(count)
    ]
    addresses = hosts.create(specs)
    hosts.set_ssh_keys(node_key, f"tpuctl:{key.public_line}")
    return [
        HostTarget("big", worker, address.external_ip, address.ssh_port, "tpuctl", address.host_key)
        for worker, address in enumerate(addresses)
    ]


def test_a_run_on_simulated_hosts_is_lost_with_its_slice_and_starts_again_on_the_next(
    hosts: ProcessHosts, key: KeyPair
) -> None:
    with closing(SshRemote(key.private_path)) as remote:
        agent = HostAgent(remote, AGENT.read_bytes())
        first = make(hosts, key, "big-1", 2)
        request = {"run": "r1", "attempt": "1", "fence": 1, "argv": ["sh", "-c", "echo up; exec sleep 300"]}
        prepared = agent.prepare(first, {"run": "r1", "attempt": "1", "fence": 1, "bundle": None})
        assert [answer.error for answer in prepared] == [None, None]
        assert all(answer.value and not answer.value.already for answer in agent.start(first, request))
        preempted = False

        def sink(worker: int, name: str, data: bytes) -> None:
            nonlocal preempted
            if not preempted:
                preempted = True
                hosts.kill("big-1")

        results = agent.follow(first, lambda _: {"run": "r1", "attempt": "1"}, sink)
        assert [result.failure for result in results] == [FailureKind.LOST] * 2
        # Refused, or already somebody else's: addresses are used again, pinned keys tell.
        assert {answer.error for answer in agent.hello(first)} <= {"connect", "host-key"}

        second = make(hosts, key, "big-2", 2)
        states = [answer.value.state for answer in agent.status(second, "r1", "1") if answer.value]
        assert states == [WorkerState.ABSENT] * 2
        agent.prepare(second, {"run": "r1", "attempt": "2", "fence": 2, "bundle": None})
        agent.start(second, {**request, "attempt": "2", "fence": 2, "argv": ["sh", "-c", "exit 5"]})
        until(
            lambda: all(a.value and a.value.state.final for a in agent.status(second, "r1", "2")),
            "the end of the second attempt",
        )
        assert [a.value.exit_status for a in agent.status(second, "r1", "2") if a.value] == [5, 5]


def test_a_session_and_its_daemons_end_when_the_stream_is_stopped(hosts: ProcessHosts, key: KeyPair) -> None:
    with closing(SshRemote(key.private_path)) as remote:
        agent = HostAgent(remote, AGENT.read_bytes())
        [target] = make(hosts, key, "big-1", 1)
        heard: list[bytes] = []
        results = agent.session(
            [target],
            "setsid sh -c 'trap \"\" TERM; echo $$ > daemon.pid; while :; do sleep 1; done' & "
            "until test -s daemon.pid; do sleep 0.05; done; cat daemon.pid; wait",
            lambda worker, name, data: heard.append(data),
            grace_s=0.2,
            should_stop=lambda: bool(heard),
        )
        assert results[0].failure is FailureKind.LOST
        daemon = int(b"".join(heard))
        until(lambda: not Path(f"/proc/{daemon}").exists(), "the daemon's end")


def test_thirty_two_simulated_hosts_tell_their_worker_numbers(hosts: ProcessHosts, key: KeyPair) -> None:
    targets = make(hosts, key, "big-1", 32)
    with closing(SshRemote(key.private_path)) as remote:
        said: dict[int, bytes] = {}
        results = HostAgent(remote, AGENT.read_bytes()).session(
            targets,
            ["printenv", "TPU_WORKER_ID"],
            lambda worker, name, data: said.update({worker: said.get(worker, b"") + data}),
        )
    assert all(result.ok for result in results), results
    assert said == {worker: f"{worker}\n".encode() for worker in range(32)}
