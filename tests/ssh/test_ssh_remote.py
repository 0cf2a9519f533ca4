"""The SSH transport against real servers on loopback: what the contract suite of remotes does not ask for."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.ssh.conftest import AGENT
from tests.support.memory.host import make_host_key
from tests.support.sshd import SshFarm
from tpuctl.engine.ports import Remedy, RemoteCall
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.commands import render_agent_command, render_session_request
from tpuctl.hosts.requests import HelloRequest
from tpuctl.model.cloud import FailureKind, HostTarget
from tpuctl.ssh.keys import KeyPair
from tpuctl.ssh.remote import SshRemote


def test_a_host_that_is_booting_is_tried_until_it_answers(
    farm: SshFarm, target: HostTarget, key: KeyPair
) -> None:
    with closing(socket.create_server((target.address, 0))) as free:
        port = free.getsockname()[1]
    late = replace(target, port=port)

    def forward() -> None:
        with closing(socket.create_server((target.address, port))) as server:
            sock, _ = server.accept()
            sock.close()

    with closing(SshRemote(key.private_path, boot_retry=True)) as remote:
        timer = threading.Timer(0.4, forward)
        timer.start()
        [result] = remote.run([late], RemoteCall("true"))
        timer.join()
    assert result.failure is FailureKind.CONNECT
    assert "handshake" in result.detail  # it got past the refusals


def test_a_host_that_is_busy_when_the_time_is_nearly_up_keeps_its_connection(
    farm: SshFarm, target: HostTarget, remote: SshRemote
) -> None:
    assert remote.run([target], RemoteCall("true"))[0].ok
    found = []
    late = threading.Thread(
        target=lambda: found.extend(remote.run([target], RemoteCall("true", timeout_s=0.2)))
    )
    with farm.hung():
        late.start()
        late.join(0.6)
    late.join()
    assert [each.failure for each in found] == [FailureKind.TIMEOUT]
    assert remote.run([target], RemoteCall("true"))[0].ok
    assert len(farm.connections) == 1


@pytest.mark.slow
def test_a_host_that_refused_a_log_in_is_left_alone_for_a_while(
    farm: SshFarm, target: HostTarget, key: KeyPair
) -> None:
    """Images of Ubuntu come with a program that bans who is refused three or four times within minutes."""
    accepted, farm.accepted = farm.accepted, set()
    with closing(SshRemote(key.private_path)) as remote:
        [first] = remote.run([target], RemoteCall("true"))
        asked = len(farm.connections)
        again = [remote.run([target], RemoteCall("true"))[0] for _ in range(3)]
        assert {each.failure for each in (first, *again)} == {FailureKind.AUTH}
        assert "it is asked again in" in again[0].detail
        assert len(farm.connections) == asked
        farm.accepted = accepted
        deadline = time.monotonic() + 60
        while not remote.run([target], RemoteCall("true"))[0].ok and time.monotonic() < deadline:
            time.sleep(0.5)
        [let_in] = remote.run([target], RemoteCall("true"))
        assert (let_in.ok, len(farm.connections)) == (True, asked + 1)


@pytest.mark.slow
def test_silence_after_refused_log_ins_is_told_as_what_it_may_be(
    farm: SshFarm, target: HostTarget, key: KeyPair
) -> None:
    farm.accepted = set()
    with closing(SshRemote(key.private_path, handshake_timeout_s=1.0)) as remote:
        assert remote.run([target], RemoteCall("true"))[0].failure is FailureKind.AUTH
        with farm.hung():
            deadline = time.monotonic() + 60
            while (told := remote.run([target], RemoteCall("true"))[0]).failure is FailureKind.AUTH:
                assert time.monotonic() < deadline
                time.sleep(0.5)
    assert told.failure is FailureKind.CONNECT
    assert "after 1 refused log-in an intrusion blocker, such as sshguard, may have banned" in told.detail


def test_a_connection_that_breaks_during_a_log_in_is_no_refused_key(
    farm: SshFarm, target: HostTarget, key: KeyPair
) -> None:
    farm.cuts_logins = True
    with closing(SshRemote(key.private_path)) as remote:
        [told] = remote.run([target], RemoteCall("true"))
        assert told.failure is FailureKind.CONNECT
        assert "cut the connection during authentication" in told.detail
        farm.cuts_logins = False
        assert remote.run([target], RemoteCall("true"))[0].ok


def test_a_busy_reader_does_not_end_the_session(target: HostTarget, key: KeyPair) -> None:
    source = AGENT.read_bytes()
    command = render_agent_command("session", hashlib.sha256(source).hexdigest())
    request = render_session_request("head -c 60000000 /dev/zero; exit 5", {}, silence_s=1.0, grace_s=0.1)
    seen = 0

    def sink(worker: int, name: str, data: bytes) -> None:
        nonlocal seen
        if not seen:
            time.sleep(2.0)
        seen += len(data)

    with closing(SshRemote(key.private_path, heartbeat_s=0.2)) as remote:
        HostAgent(remote, source).ask([target], HelloRequest())
        [result] = remote.run(
            [target], RemoteCall(command, sink=sink, timeout_s=None, stdin=request, hold_stdin=True)
        )
    assert (result.exit_status, seen) == (5, 60_000_000)


def test_what_workers_lack_is_brought_to_a_few_at_a_time(farm: SshFarm, key: KeyPair, tmp_path: Path) -> None:
    log = tmp_path / "log"
    targets = [farm.add(worker) for worker in range(4)]
    bring = f"echo begins >> {log}; sleep 0.1; touch there; echo ends >> {log}"
    remedy = Remedy(97, b"it is not there\n", bring, b"", "it could not be brought")
    command = "test -e there || { echo it is not there >&2; exit 97; }; echo there"
    with closing(SshRemote(key.private_path, max_remedies=1)) as remote:
        results = remote.run(targets, RemoteCall(command, timeout_s=None, remedy=remedy))
    assert [(each.stdout, each.stderr) for each in results] == [(b"there\n", b"")] * 4
    assert log.read_text().split() == ["begins", "ends"] * 4


def test_a_worker_to_which_nothing_was_brought_in_time_says_so(
    farm: SshFarm, target: HostTarget, key: KeyPair
) -> None:
    remedy = Remedy(97, b"", "touch there", b"", "it could not be brought")
    with closing(SshRemote(key.private_path, max_remedies=0)) as remote:
        [told] = remote.run([target], RemoteCall("exit 97", timeout_s=1.0, remedy=remedy))
    assert told.failure is FailureKind.TIMEOUT
    assert "was still being brought to other workers" in told.detail


def test_a_connection_that_breaks_while_it_sends_is_lost_and_nobody_pressed_ctrl_c(
    farm: SshFarm, target: HostTarget, key: KeyPair
) -> None:
    """paramiko raises EOFError then, as Python does for the end of what a person types."""
    for _ in range(5):
        sent = threading.Event()

        def pieces(sent: threading.Event = sent) -> Iterator[bytes]:
            for number in range(10_000):
                if number == 20:
                    sent.set()
                yield bytes(64 * 1024)

        with closing(SshRemote(key.private_path)) as remote:
            cut = threading.Thread(target=lambda sent=sent: (sent.wait(60), farm.drop_connections()))
            cut.start()
            [result] = remote.run(
                [target],
                RemoteCall(
                    "cat > /dev/null",
                    sink=lambda *_: None,
                    timeout_s=None,
                    stdin=lambda _, pieces=pieces: pieces(),
                ),
            )
            cut.join()
        assert result.failure is FailureKind.LOST


def test_two_threads_share_one_connection(farm: SshFarm, target: HostTarget, remote: SshRemote) -> None:
    results = []
    threads = [
        threading.Thread(target=lambda: results.extend(remote.run([target], RemoteCall("sleep 0.1; echo ok"))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.stdout for result in results] == [b"ok\n"] * 4
    assert len(farm.connections) == 1


def test_close_leaves_neither_threads_nor_sockets(farm: SshFarm, key: KeyPair) -> None:
    targets = [farm.add(worker) for worker in range(4)]
    before_threads, before_files = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    server_side = len(targets)
    remote = SshRemote(key.private_path)
    remote.run(targets, RemoteCall("true"))
    bad = replace(targets[0], host_key=make_host_key(1))
    remote.run([bad], RemoteCall("true"))
    remote.close()
    left = {thread for thread in threading.enumerate() if "asyncio" not in thread.name} - before_threads
    assert left == set()
    deadline = time.monotonic() + 10
    while len(os.listdir("/proc/self/fd")) > before_files + server_side:
        assert time.monotonic() < deadline, "sockets were left open"
        time.sleep(0.02)


def test_a_missing_key_file_is_a_readable_error(target: HostTarget, farm: SshFarm) -> None:
    from tpuctl.errors import BadConfigError

    with pytest.raises(BadConfigError, match="cannot read the SSH key"):
        SshRemote(farm.folder / "none").run([target], RemoteCall("true"))


def test_thirty_two_hosts_answer_at_once_with_few_handshakes_in_flight(farm: SshFarm, key: KeyPair) -> None:
    targets = [farm.add(worker) for worker in range(32)]
    with closing(SshRemote(key.private_path, max_handshakes=4)) as remote:
        results = remote.run(targets, RemoteCall("printenv TPU_WORKER_ID"))
    assert [result.stdout for result in results] == [f"{worker}\n".encode() for worker in range(32)]


def test_the_time_of_a_call_is_also_that_of_waiting_for_a_handshake(target: HostTarget, key: KeyPair) -> None:
    with closing(SshRemote(key.private_path, max_handshakes=0)) as remote:
        [told] = remote.run([target], RemoteCall("true", timeout_s=1.0))
    assert (told.failure, told.detail) == (
        FailureKind.TIMEOUT,
        "other hosts were still logged in to when the time was up",
    )
