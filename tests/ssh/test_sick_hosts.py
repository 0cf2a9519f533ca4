"""One sick host among others that are like real ones: it is reported for what it is, and nobody waits."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import asyncssh
import pytest
from msgspec.structs import replace

from tests.ssh.conftest import AGENT
from tests.support.hosts import NODE, Lab, open_lab, populate, require_tier
from tpuctl.hosts.agent import HostAgent
from tpuctl.model.cloud import FailureKind, HostTarget, RemoteResult
from tpuctl.sim.hosts.isolated.backend import IsolatedHosts
from tpuctl.ssh.remote import SshRemote

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WORKERS = 10
"""Of which nobody waits for the sick one; the benchmarks have more of them."""
CONNECT_S, HANDSHAKE_S = 5.0, 10.0
NOTICED_S = 3.0
"""From the end of a deadline to the report of it, on a machine that has much else to do."""
REPORTED_S = 16.0
"""From the moment in which a host falls silent in mid-command to the report of it: what users are promised."""


class Ward:
    """The hosts, and a client of its own for every look at them."""

    def __init__(self, lab: Lab, hosts: IsolatedHosts) -> None:
        self.lab = lab
        self.hosts = hosts
        self.targets = [
            HostTarget("big", worker, each.external_ip, each.ssh_port, "alice", each.host_key)
            for worker, each in enumerate(lab.addresses)
        ]

    def session(
        self,
        command: str,
        targets: list[HostTarget] | None = None,
        heard: Callable[[int, str, bytes], None] = lambda *_: None,
        ended: Callable[[RemoteResult], None] | None = None,
    ) -> list[RemoteResult]:
        remote = SshRemote(
            self.lab.key_file,
            connect_timeout_s=CONNECT_S,
            handshake_timeout_s=HANDSHAKE_S,
        )
        with closing(remote):
            agent = HostAgent(remote, AGENT.read_bytes())
            return agent.session(self.targets if targets is None else targets, command, heard, on_end=ended)

    def sshd(self, worker: int) -> list[int]:
        pids = self.hosts.processes(NODE, worker)
        return [pid for pid in pids if Path(f"/proc/{pid}/comm").read_text() == "sshd\n"]

    @contextmanager
    def frozen(self, pids: list[int]) -> Iterator[None]:
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    @contextmanager
    def unplugged(self, worker: int) -> Iterator[None]:
        self.hosts.set_cable(NODE, worker, plugged=False)
        try:
            yield
        finally:
            self.hosts.set_cable(NODE, worker, plugged=True)


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    require_tier("isolated")
    with open_lab("isolated", tmp_path_factory.mktemp("ward")) as lab:
        assert isinstance(lab.hosts, IsolatedHosts)
        populate(lab, WORKERS)
        made = Ward(lab, lab.hosts)
        assert all(result.ok for result in made.session("true"))  # the agent is there from now on
        yield made


def check_others(results: list[RemoteResult], sick: int) -> RemoteResult:
    """All others gave their results; that of the sick one."""
    assert len(results) == WORKERS
    assert [result.worker for result in results if not result.ok] == [sick]
    return results[sick]


def check_waited_for_alone(results: list[RemoteResult], sick: int, after_s: float) -> RemoteResult:
    """The sick one was given up when its deadline was over, long after the others had their results."""
    result = check_others(results, sick)
    assert after_s - 1 < result.duration_s < after_s + NOTICED_S
    assert sorted(each.duration_s for each in results)[-1] == result.duration_s
    return result


def test_a_host_that_is_dead_at_connect_is_given_up_after_the_time_for_connecting(ward: Ward) -> None:
    with ward.unplugged(3):
        results = ward.session("true")
    result = check_waited_for_alone(results, 3, CONNECT_S)
    assert result.failure is FailureKind.CONNECT


def test_a_host_that_accepts_and_never_says_a_word_is_given_up_after_the_time_for_handshakes(
    ward: Ward,
) -> None:
    listener = ward.hosts.processes(NODE, 4)[0]
    with ward.frozen([listener]):
        results = ward.session("true")
    assert check_waited_for_alone(results, 4, HANDSHAKE_S).failure is FailureKind.CONNECT


def check_report(ward: Ward, sick: int, strike: Callable[[], None]) -> None:
    """All say hello; then `strike` hits one while its command runs. Its loss is told in the time promised, by
    the product's own clock, while one of the others goes on, and that one ends as if nothing had been."""
    struck: list[float] = []
    told: list[RemoteResult] = []
    began = time.monotonic()

    def heard(worker: int, name: str, data: bytes) -> None:
        if worker == sick and not struck:
            struck.append(time.monotonic() - began)
            strike()

    program = f"echo hello; case $TPUCTL_SIM_HOST in */{sick}) sleep 120;; */0) sleep 20;; esac"
    results = ward.session(program, heard=heard, ended=told.append)
    result = check_others(results, sick)
    assert result.failure is FailureKind.LOST
    assert result.duration_s - struck[0] <= REPORTED_S
    assert [each.worker for each in told][-2:] == [sick, 0]
    assert len(told) == WORKERS


def test_a_host_whose_sshd_stops_in_mid_command_is_reported_in_16_s(ward: Ward) -> None:
    stopped: list[int] = []

    def strike() -> None:
        for pid in ward.sshd(5):
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)

    try:
        check_report(ward, 5, strike)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert stopped


def test_a_host_whose_cable_is_cut_in_mid_command_is_reported_in_16_s(ward: Ward) -> None:
    try:
        check_report(ward, 6, lambda: ward.hosts.set_cable(NODE, 6, plugged=False))
    finally:
        ward.hosts.set_cable(NODE, 6, plugged=True)


def test_a_host_with_another_key_is_refused_before_it_learns_who_asks(ward: Ward) -> None:
    log = ward.lab.root / "hosts" / "p1%2Fus-central2-b%2Fbig-1" / "7" / "boot.log"
    before = log.read_text().count("Accepted publickey")
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
    targets = [replace(each, host_key=other) if each.worker == 7 else each for each in ward.targets]
    result = check_others(ward.session("true", targets), 7)
    assert result.failure is FailureKind.HOST_KEY
    news = log.read_text()
    assert news.count("Accepted publickey") == before
    assert "alice" not in news.splitlines()[-1]


def test_a_host_whose_disk_is_full_fails_with_its_own_words(ward: Ward) -> None:
    fill = "mkdir -p scratch; "
    fill += "case $TPUCTL_SIM_HOST in */8) sudo -n mount -t tmpfs -o size=64k,mode=777 none scratch;; esac; "
    fill += "head -c 1000000 /dev/zero > scratch/data || exit 28"
    said: dict[int, bytes] = {}

    def heard(worker: int, name: str, data: bytes) -> None:
        said[worker] = said.get(worker, b"") + data

    result = check_others(ward.session(f"sh -c {shlex.quote(fill)}", heard=heard), 8)
    assert (result.failure, result.exit_status) == (None, 28)
    assert list(said) == [8]
    assert b"No space left on device" in said[8]
