"""The SSH transport against real servers on loopback: results, failures, host keys, limits, clean-up."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import asyncssh
import pytest
from msgspec.structs import replace

from tests.ssh.conftest import AGENT
from tests.support.sshd import SshFarm
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.commands import render_agent_command, render_session_request
from tpuctl.lib.shell import quote
from tpuctl.model.cloud import FailureKind, HostTarget
from tpuctl.ssh.keys import KeyPair, ensure_keypair
from tpuctl.ssh.remote import SshRemote


@contextmanager
def silent_server(address: str, *, backlog_full: bool = False) -> Iterator[int]:
    """Accepts TCP and says nothing; with `backlog_full` further connections are dropped, as by a dead host."""
    with closing(socket.socket()) as server:
        server.bind((address, 0))
        server.listen(0 if backlog_full else 16)
        fillers = []
        for _ in range(4 if backlog_full else 0):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
            fillers.append(filler)
        try:
            yield server.getsockname()[1]
        finally:
            for filler in fillers:
                filler.close()


def other_host_key() -> str:
    return asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()


def test_exit_statuses_and_output_come_back_in_the_order_of_the_targets(
    farm: SshFarm, remote: SshRemote
) -> None:
    targets = [farm.add(worker) for worker in (2, 0, 3, 1)]
    results = remote.run(targets, 'echo "I am $TPU_WORKER_ID"; echo oops >&2; exit $TPU_WORKER_ID')
    assert [result.worker for result in results] == [2, 0, 3, 1]
    assert [result.exit_status for result in results] == [2, 0, 3, 1]
    assert [result.stdout for result in results] == [f"I am {n}\n".encode() for n in (2, 0, 3, 1)]
    assert all(result.stderr == b"oops\n" for result in results)
    assert [result.ok for result in results] == [False, True, False, False]


def test_one_failing_worker_among_selected_ones_is_never_success(farm: SshFarm, remote: SshRemote) -> None:
    targets = [farm.add(worker) for worker in (2, 3)]
    results = remote.run(targets, 'test "$TPU_WORKER_ID" = 2')
    assert [(result.worker, result.exit_status) for result in results] == [(2, 0), (3, 1)]


def test_stdin_larger_than_the_window_arrives_whole_while_output_flows_back(
    target: HostTarget, remote: SshRemote
) -> None:
    data = os.urandom(5_000_000)
    [result] = remote.run([target], "cat", stdin=data)
    assert result.ok
    assert result.stdout == data


def test_stdin_may_differ_per_worker_and_come_in_pieces(farm: SshFarm, remote: SshRemote) -> None:
    targets = [farm.add(worker) for worker in range(3)]
    results = remote.run(targets, "cat", stdin=lambda target: (b"%d" % target.worker for _ in range(3)))
    assert [result.stdout for result in results] == [b"000", b"111", b"222"]


def test_a_command_that_closes_its_stdin_early_keeps_its_output_and_status(
    target: HostTarget, remote: SshRemote
) -> None:
    [result] = remote.run([target], "head -c 3; exit 5", stdin=b"x" * 20_000_000)
    assert (result.stdout, result.exit_status) == (b"xxx", 5)


def test_a_hundred_nasty_arguments_arrive_unchanged(target: HostTarget, remote: SshRemote) -> None:
    pieces = [
        "'",
        '"',
        "$HOME",
        "`id`",
        "\\",
        "\n",
        " ",
        "*",
        "-n",
        "é",
        "日本",
        "!",
        "#",
        "~",
        ";",
        "|",
        "\t",
        "\r",
    ]
    nasty = [
        pieces[i % len(pieces)] + pieces[(i * 7 + i // 18) % len(pieces)] + f"{i}" * (i % 3) for i in range(99)
    ]
    command = "printf '%s\\0' " + " ".join(quote(word) for word in ["", *nasty])
    [result] = remote.run([target], command)
    assert result.stdout.decode().split("\0")[:-1] == ["", *nasty]


def test_a_command_killed_by_a_signal_is_told_from_an_exit(target: HostTarget, remote: SshRemote) -> None:
    [result] = remote.run([target], "echo before; kill -9 $$")
    assert (result.exit_status, result.failure, result.stdout) == (None, FailureKind.SIGNAL, b"before\n")


def test_a_command_that_does_not_end_in_time_is_a_timeout_with_the_output_so_far(
    target: HostTarget, remote: SshRemote
) -> None:
    [result] = remote.run([target], "echo so far; exec sleep 60", timeout_s=0.5)
    assert (result.exit_status, result.failure, result.stdout) == (None, FailureKind.TIMEOUT, b"so far\n")


def test_a_connection_cut_in_the_middle_is_lost_and_the_next_command_reconnects(
    farm: SshFarm, target: HostTarget, remote: SshRemote
) -> None:
    cut = threading.Event()

    def sink(worker: int, name: str, data: bytes) -> None:
        if not cut.is_set():
            cut.set()
            farm.drop_connections()

    [result] = remote.stream([target], "echo up; exec sleep 60", sink)
    assert (result.exit_status, result.failure) == (None, FailureKind.LOST)
    assert remote.run([target], "echo again")[0].stdout == b"again\n"


def test_a_wrong_host_key_is_refused_before_the_user_is_named(
    farm: SshFarm, target: HostTarget, remote: SshRemote
) -> None:
    [result] = remote.run([replace(target, host_key=other_host_key())], "echo never")
    assert result.failure is FailureKind.HOST_KEY
    assert "another host key" in result.detail
    assert farm.users_seen == []


def test_a_target_without_a_pinned_key_is_refused(farm: SshFarm, target: HostTarget, remote: SshRemote) -> None:
    [result] = remote.run([replace(target, host_key="")], "echo never")
    assert result.failure is FailureKind.HOST_KEY
    assert farm.users_seen == []


def test_a_key_that_the_host_does_not_accept_is_an_auth_failure(farm: SshFarm, target: HostTarget) -> None:
    stranger = ensure_keypair(farm.folder / "stranger")
    with closing(SshRemote(stranger.private_path)) as remote:
        [result] = remote.run([target], "echo never")
    assert result.failure is FailureKind.AUTH


def test_a_refused_connection_says_so(target: HostTarget, remote: SshRemote) -> None:
    with silent_server(target.address) as port:
        pass
    [result] = remote.run([replace(target, port=port)], "true")
    assert result.failure is FailureKind.CONNECT
    assert "refused" in result.detail


def test_hosts_that_never_answer_fail_alone_and_the_others_still_answer(farm: SshFarm, key: KeyPair) -> None:
    good = farm.add(0)
    with (
        closing(SshRemote(key.private_path, connect_timeout_s=0.5, handshake_timeout_s=0.5)) as remote,
        silent_server("127.78.0.50") as mute,
        silent_server("127.78.0.51", backlog_full=True) as dead,
    ):
        targets = [
            replace(good, worker=1, address="127.78.0.50", port=mute),
            good,
            replace(good, worker=2, address="127.78.0.51", port=dead),
        ]
        results = remote.run(targets, "echo fine")
    assert [result.failure for result in results] == [FailureKind.CONNECT, None, FailureKind.CONNECT]
    assert results[1].stdout == b"fine\n"
    assert "handshake" in results[0].detail
    assert "did not answer" in results[2].detail


def test_a_host_that_is_booting_is_tried_until_it_answers(
    farm: SshFarm, target: HostTarget, key: KeyPair
) -> None:
    with silent_server(target.address) as port:
        pass
    late = replace(target, port=port)

    def forward() -> None:
        with closing(socket.create_server((target.address, port))) as server:
            sock, _ = server.accept()
            sock.close()

    with closing(SshRemote(key.private_path, boot_retry=True)) as remote:
        timer = threading.Timer(0.4, forward)
        timer.start()
        [result] = remote.run([late], "true")
        timer.join()
    assert result.failure is FailureKind.CONNECT
    assert "handshake" in result.detail  # it got past the refusals


def test_streamed_output_reaches_the_sink_in_order_and_is_not_kept(farm: SshFarm, remote: SshRemote) -> None:
    targets = [farm.add(worker) for worker in range(3)]
    seen: dict[tuple[int, str], bytes] = {}
    threads = set()

    def sink(worker: int, name: str, data: bytes) -> None:
        threads.add(threading.get_ident())
        seen[worker, name] = seen.get((worker, name), b"") + data

    results = remote.stream(
        targets, lambda target: f"seq {target.worker} 20000; echo err{target.worker} >&2", sink
    )
    assert all(result.ok and result.stdout == b"" for result in results)
    for worker in range(3):
        assert seen[worker, "stdout"] == "".join(f"{n}\n" for n in range(worker, 20001)).encode()
        assert seen[worker, "stderr"] == f"err{worker}\n".encode()
    assert threads == {threading.get_ident()}


def test_a_slow_sink_holds_back_the_hosts_instead_of_filling_memory(
    farm: SshFarm, target: HostTarget, remote: SshRemote
) -> None:
    progress = farm.folder / "home-0" / "progress"
    command = (
        'i=0; while [ $i -lt 400 ]; do head -c 262144 /dev/zero; i=$((i+1)); echo $i > "$HOME/progress"; done'
    )
    written_while_blocked: list[int] = []

    def written() -> int:
        return int(progress.read_text() or 0) if progress.exists() else 0

    def sink(worker: int, name: str, data: bytes) -> None:
        while not written_while_blocked:
            before = written()
            time.sleep(0.3)
            if before and before == written():
                written_while_blocked.append(before)

    [result] = remote.stream([target], command, sink)
    assert result.ok
    assert written() == 400
    assert written_while_blocked[0] < 300


def test_a_host_that_hangs_in_the_middle_of_a_command_is_lost(
    farm: SshFarm, target: HostTarget, key: KeyPair
) -> None:
    with closing(SshRemote(key.private_path, silence_s=0.6)) as remote:
        assert remote.run([target], "sleep 1; echo quiet but alive")[0].stdout == b"quiet but alive\n"
        with ExitStack() as stack:
            [result] = remote.stream([target], "echo up; sleep 60", lambda *_: stack.enter_context(farm.hung()))
    assert (result.exit_status, result.failure) == (None, FailureKind.LOST)
    assert "no sign of life" in result.detail


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
        HostAgent(remote, source).ensure_installed([target])
        [result] = remote.stream([target], command, sink, stdin=request, hold_stdin=True)
    assert (result.exit_status, seen) == (5, 60_000_000)


def test_should_stop_ends_a_stream_and_names_the_reason(farm: SshFarm, remote: SshRemote) -> None:
    targets = [farm.add(worker) for worker in range(2)]
    heard: set[int] = set()
    results = remote.stream(
        targets,
        "echo up; exec sleep 60",
        lambda worker, name, data: heard.add(worker),
        should_stop=lambda: heard == {0, 1},
    )
    assert [result.failure for result in results] == [FailureKind.LOST] * 2
    assert all("stopped by this side" in result.detail for result in results)


def test_ctrl_c_in_the_sink_is_raised_and_closes_the_channels(
    farm: SshFarm, target: HostTarget, remote: SshRemote
) -> None:
    def sink(worker: int, name: str, data: bytes) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remote.stream([target], "echo up; cat >/dev/null; echo gone > gone", sink, hold_stdin=True)
    deadline = time.monotonic() + 10
    while not (farm.folder / "home-0" / "gone").exists():
        assert time.monotonic() < deadline, "the host's stdin was not closed"
        time.sleep(0.02)


def test_connections_are_kept_between_commands(farm: SshFarm, target: HostTarget, remote: SshRemote) -> None:
    for _ in range(3):
        assert remote.run([target], "true")[0].ok
    assert len(farm.connections) == 1


def test_two_threads_share_one_connection(farm: SshFarm, target: HostTarget, remote: SshRemote) -> None:
    results = []
    threads = [
        threading.Thread(target=lambda: results.extend(remote.run([target], "sleep 0.1; echo ok")))
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
    remote.run(targets, "true")
    bad = replace(targets[0], host_key=other_host_key())
    remote.run([bad], "true")
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
        SshRemote(farm.folder / "none").run([target], "true")


def test_thirty_two_hosts_answer_at_once_with_few_handshakes_in_flight(farm: SshFarm, key: KeyPair) -> None:
    targets = [farm.add(worker) for worker in range(32)]
    with closing(SshRemote(key.private_path, max_handshakes=4)) as remote:
        results = remote.run(targets, "printenv TPU_WORKER_ID")
    assert [result.stdout for result in results] == [f"{worker}\n".encode() for worker in range(32)]
