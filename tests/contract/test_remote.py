"""What every `Remote` must do: over real SSH servers, both tiers of simulated hosts, and hosts in memory."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support import vocabulary as words
from tests.support.memory.host import make_host_key
from tests.support.remotes import LABS, SILENCE_S, SSHD, Lab
from tests.support.require import require_isolated_hosts
from tests.support.soak import soak
from tpuctl.engine.ports import Remote, RemoteCall
from tpuctl.errors import ConflictError
from tpuctl.lib.shell import quote
from tpuctl.model.cloud import FailureKind, HostTarget
from tpuctl.ssh.keys import KeyPair, ensure_keypair

no_sshd = pytest.mark.skipif(SSHD is None, reason="OpenSSH's sshd is not installed")
EVERYWHERE = ["memory", "simulated", soak("isolated"), pytest.param("sshd", marks=no_sshd)]
"""Isolated hosts have OpenSSH's sshd, too."""
OBSERVABLE = ["memory", "isolated", pytest.param("sshd", marks=no_sshd)]
"""Labs that can hang one host alone and tell what it heard."""


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return ensure_keypair(tmp_path_factory.mktemp("state"))


@contextlib.contextmanager
def open_lab(kind: str, folder: Path, key: KeyPair) -> Iterator[Lab]:
    if kind == "isolated":
        require_isolated_hosts()
    with contextlib.closing(LABS[kind](folder, key)) as made:
        yield made


@pytest.fixture(params=EVERYWHERE)
def lab(request: pytest.FixtureRequest, tmp_path: Path, key: KeyPair) -> Iterator[Lab]:
    with open_lab(request.param, tmp_path, key) as made:
        yield made


@pytest.fixture
def remote(lab: Lab) -> Remote:
    return lab.remote()


@pytest.fixture
def target(lab: Lab) -> HostTarget:
    return lab.add(0)


def test_results_come_in_the_order_of_the_targets_with_statuses_and_both_streams(lab: Lab, remote: Remote):
    results = remote.run([lab.add(worker) for worker in (2, 0, 3)], RemoteCall(words.TELL))
    assert [result.worker for result in results] == [2, 0, 3]
    assert [result.exit_status for result in results] == [2, 0, 3]
    assert [result.stdout for result in results] == [b"I am 2\n", b"I am 0\n", b"I am 3\n"]
    assert {result.stderr for result in results} == {b"oops\n"}
    assert [result.ok for result in results] == [False, True, False]


def test_one_failing_worker_is_never_success(lab: Lab, remote: Remote):
    results = remote.run([lab.add(worker) for worker in (2, 3)], RemoteCall(words.ONLY_TWO))
    assert [(result.worker, result.exit_status) for result in results] == [(2, 0), (3, 1)]


def test_an_unknown_command_is_the_shells_own_status(target: HostTarget, remote: Remote):
    [result] = remote.run([target], RemoteCall("no-such-command-x"))
    assert (result.exit_status, result.failure) == (127, None)
    assert b"no-such-command-x" in result.stderr


def test_stdin_arrives_whole_while_output_flows_back(target: HostTarget, remote: Remote):
    data = os.urandom(3_000_000)
    [result] = remote.run([target], RemoteCall("cat", stdin=data))
    assert (result.ok, result.stdout == data) == (True, True)


def test_stdin_may_differ_per_worker_and_come_in_pieces(lab: Lab, remote: Remote):
    targets = [lab.add(worker) for worker in range(3)]
    results = remote.run(
        targets, RemoteCall("cat", stdin=lambda target: (b"%d" % target.worker for _ in range(3)))
    )
    assert [result.stdout for result in results] == [b"000", b"111", b"222"]


def test_a_command_that_leaves_its_stdin_keeps_its_output_and_status(target: HostTarget, remote: Remote):
    [result] = remote.run([target], RemoteCall(words.TAKE_THREE, stdin=b"x" * 9_000_000))
    assert (result.stdout, result.exit_status) == (b"xxx", 5)


def test_a_hundred_nasty_arguments_arrive_unchanged(target: HostTarget, remote: Remote):
    pieces = [
        *("'", '"', "$HOME", "`id`", "\\", "\n", " ", "*", "-n"),
        *("é", "日本", "!", "#", "~", ";", "|", "\t", "\r"),
    ]
    nasty = [pieces[i % 18] + pieces[(i * 7 + i // 18) % 18] + f"{i}" * (i % 3) for i in range(99)]
    [result] = remote.run(
        [target], RemoteCall("printf '%s\\0' " + " ".join(quote(word) for word in ["", *nasty]))
    )
    assert result.stdout.decode().split("\0")[:-1] == ["", *nasty]


def test_a_death_by_signal_is_told_from_an_exit(target: HostTarget, remote: Remote):
    [result] = remote.run([target], RemoteCall(words.DIE))
    assert (result.exit_status, result.failure, result.stdout) == (None, FailureKind.SIGNAL, b"before\n")


def test_a_command_that_takes_too_long_is_a_timeout_with_the_output_so_far(target: HostTarget, remote: Remote):
    [result] = remote.run([target], RemoteCall(words.HANG, timeout_s=1.5))
    assert (result.exit_status, result.failure, result.stdout) == (None, FailureKind.TIMEOUT, b"up\n")


def test_a_connection_cut_in_the_middle_is_lost_and_the_next_command_connects_again(
    lab: Lab, target: HostTarget, remote: Remote
):
    cut: list[int] = []

    def sink(worker: int, name: str, data: bytes) -> None:
        if not cut:
            cut.append(worker)
            lab.cut(target)

    [result] = remote.run([target], RemoteCall(words.HANG, sink=sink, timeout_s=None))
    assert (result.exit_status, result.failure) == (None, FailureKind.LOST)
    assert remote.run([target], RemoteCall("echo again"))[0].stdout == b"again\n"


def test_a_wrong_host_key_is_refused_and_the_right_one_is_not(target: HostTarget, remote: Remote):
    wrong = replace(target, host_key=make_host_key(77))
    [result] = remote.run([wrong], RemoteCall("echo never"))
    assert (result.failure, result.exit_status) == (FailureKind.HOST_KEY, None)
    assert "another host key" in result.detail
    assert (
        remote.run([replace(target, host_key="")], RemoteCall("echo never"))[0].failure is FailureKind.HOST_KEY
    )
    assert remote.run([target], RemoteCall("echo fine"))[0].stdout == b"fine\n"


def test_a_key_that_the_host_does_not_know_is_an_auth_failure(lab: Lab, target: HostTarget):
    [result] = lab.stranger().run([target], RemoteCall("echo never"))
    assert (result.failure, result.stdout) == (FailureKind.AUTH, b"")


def test_a_refused_connection_says_so(lab: Lab, target: HostTarget, remote: Remote):
    [result] = remote.run([lab.refuse(target)], RemoteCall("true"))
    assert result.failure is FailureKind.CONNECT
    assert "refused" in result.detail


def test_hosts_that_never_answer_fail_alone(lab: Lab, target: HostTarget, remote: Remote):
    mute, dead = replace(lab.mute(), worker=1), replace(lab.unreachable(), worker=2)
    results = remote.run([mute, target, dead], RemoteCall("echo fine"))
    assert [result.failure for result in results] == [FailureKind.CONNECT, None, FailureKind.CONNECT]
    assert results[1].stdout == b"fine\n"
    assert "handshake" in results[0].detail
    assert "did not answer" in results[2].detail


def test_a_dead_host_does_not_hold_up_the_others(lab: Lab, target: HostTarget):
    looks: list[bool] = []
    heard: list[bytes] = []

    def should_stop() -> bool:
        """A while after the good host's output, which is time enough for its end, too."""
        looks.extend([True] * bool(heard))
        return len(looks) > 10

    dead, good = lab.remote(connect_timeout_s=60.0).run(
        [replace(lab.unreachable(), worker=1), target],
        RemoteCall(
            "echo fine",
            sink=lambda worker, name, data: heard.append(data),
            timeout_s=None,
            should_stop=should_stop,
        ),
    )
    assert good.ok
    assert (dead.failure, "stopped by this side" in dead.detail) == (FailureKind.LOST, True)


def test_streamed_output_reaches_the_sink_whole_in_order_and_in_the_callers_thread(lab: Lab, remote: Remote):
    targets = [lab.add(worker) for worker in range(3)]
    seen: dict[tuple[int, str], bytes] = {}
    threads = set()

    def sink(worker: int, name: str, data: bytes) -> None:
        threads.add(threading.get_ident())
        seen[worker, name] = seen.get((worker, name), b"") + data

    results = remote.run(targets, RemoteCall(lambda target: words.LINES, sink=sink, timeout_s=None))
    assert all(result.ok and result.stdout == b"" for result in results)
    assert {seen[worker, "stdout"] for worker in range(3)} == {"".join(f"{n}\n" for n in range(20001)).encode()}
    assert {seen[worker, "stderr"] for worker in range(3)} == {b"err\n"}
    assert threads == {threading.get_ident()}


def test_a_slow_sink_holds_back_the_host_instead_of_filling_memory(
    lab: Lab, target: HostTarget, remote: Remote
):
    made_while_blocked: list[int] = []
    seen = 0

    def made() -> int:
        return int(lab.read(target, "progress") or 0)

    def sink(worker: int, name: str, data: bytes) -> None:
        nonlocal seen
        seen += len(data)
        while not made_while_blocked:
            before = made()
            time.sleep(0.2)
            if before and before == made():
                made_while_blocked.append(before)

    [result] = remote.run([target], RemoteCall(words.FLOOD, sink=sink, timeout_s=None))
    assert (result.ok, seen) == (True, words.FLOOD_PIECES * words.FLOOD_PIECE)
    assert made() == words.FLOOD_PIECES
    assert made_while_blocked[0] < 150


def test_should_stop_ends_a_stream_and_says_so(lab: Lab, remote: Remote):
    targets = [lab.add(worker) for worker in range(2)]
    heard: set[int] = set()
    results = remote.run(
        targets,
        RemoteCall(
            words.HANG,
            sink=lambda worker, name, data: heard.add(worker),
            timeout_s=None,
            should_stop=lambda: heard == {0, 1},
        ),
    )
    assert [result.failure for result in results] == [FailureKind.LOST] * 2
    assert all("stopped by this side" in result.detail for result in results)


def test_held_stdin_stays_open_until_the_stream_is_stopped(lab: Lab, target: HostTarget, remote: Remote):
    heard: list[bytes] = []
    [result] = remote.run(
        [target],
        RemoteCall(
            words.UNTIL_EOF,
            sink=lambda worker, name, data: heard.append(lab.read(target, "gone").encode()),
            timeout_s=None,
            hold_stdin=True,
            should_stop=lambda: bool(heard),
        ),
    )
    assert (result.failure, heard) == (FailureKind.LOST, [b""])
    lab.until(lambda: lab.read(target, "gone") == "gone\n", "the end of the host's stdin")


def test_what_is_not_held_ends_with_the_given_bytes(lab: Lab, target: HostTarget, remote: Remote):
    [result] = remote.run([target], RemoteCall(words.UNTIL_EOF, sink=lambda *_: None, timeout_s=None))
    assert (result.ok, lab.read(target, "gone")) == (True, "gone\n")


def test_an_interrupt_in_the_sink_is_raised_and_closes_the_channel(
    lab: Lab, target: HostTarget, remote: Remote
):
    def sink(worker: int, name: str, data: bytes) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remote.run([target], RemoteCall(words.UNTIL_EOF, sink=sink, timeout_s=None, hold_stdin=True))
    lab.until(lambda: lab.read(target, "gone") == "gone\n", "the end of the host's stdin")


def test_host_keys_are_read_without_a_login(lab: Lab, target: HostTarget, remote: Remote):
    shown = remote.read_host_keys([target, lab.unreachable()])
    assert shown[1] is None
    assert shown[0] is not None
    assert shown[0].split()[:2] == target.host_key.split()[:2]


def ask(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        answer = b""
        with contextlib.suppress(OSError):  # it may be closed before the question is asked
            connection.sendall(b"?")
            connection.shutdown(socket.SHUT_WR)
            while data := connection.recv(1000):
                answer += data
        return answer


def test_a_forwarded_port_leads_to_the_workers(lab: Lab, target: HostTarget, remote: Remote):
    port = lab.serve(target, b"board")
    reported: list[str] = []
    forwarding = remote.forward(lambda: target, port, report=reported.append)
    try:
        assert [ask(forwarding.local_port) for _ in range(3)] == [b"board"] * 3
        with pytest.raises(ConflictError, match=str(forwarding.local_port)):
            remote.forward(lambda: target, port, local_port=forwarding.local_port, report=reported.append)
    finally:
        forwarding.close()
    with pytest.raises(OSError):
        ask(forwarding.local_port)
    assert reported == []


def test_a_forwarded_connection_that_fails_is_closed_and_reported(lab: Lab, target: HostTarget, remote: Remote):
    reported: list[str] = []
    wrong = replace(target, host_key=make_host_key(77))
    forwarding = remote.forward(lambda: wrong, 6006, report=reported.append)
    try:
        assert ask(forwarding.local_port) == b""
        lab.until(lambda: bool(reported), "the report")
    finally:
        forwarding.close()
    assert "another host key" in reported[0]


# What only labs show that can look into a host, or hang one alone.


@pytest.fixture(params=OBSERVABLE)
def observed(request: pytest.FixtureRequest, tmp_path: Path, key: KeyPair) -> Iterator[Lab]:
    with open_lab(request.param, tmp_path, key) as made:
        yield made


def test_nothing_is_sent_to_a_host_with_another_key(observed: Lab):
    target, remote = observed.add(0), observed.remote()
    remote.run([replace(target, host_key=make_host_key(77))], RemoteCall("echo never"))
    assert observed.logins(target) == 0
    remote.run([target], RemoteCall("echo fine"))
    assert observed.logins(target) == 1


def test_connections_are_kept_between_commands(observed: Lab):
    target, remote = observed.add(0), observed.remote()
    for _ in range(3):
        assert remote.run([target], RemoteCall("true"))[0].ok
    assert observed.logins(target) == 1


def test_a_host_that_hangs_in_the_middle_of_a_command_is_lost_alone(observed: Lab):
    target, other = observed.add(0), observed.add(1)
    remote = observed.remote(silence_s=SILENCE_S)
    assert remote.run([target], RemoteCall(words.LATE))[0].stdout == b"quiet but alive\n"

    def sink(worker: int, name: str, data: bytes) -> None:
        if worker == target.worker:
            observed.stack.enter_context(observed.hang(target))

    hung, fine = remote.run(
        [target, other],
        RemoteCall(lambda asked: words.HANG if asked == target else "echo up", sink=sink, timeout_s=None),
    )
    assert (hung.exit_status, hung.failure) == (None, FailureKind.LOST)
    assert "no sign of life" in hung.detail
    assert fine.ok


def test_the_end_of_each_command_is_told_while_others_go_on(lab: Lab, remote: Remote):
    targets = [lab.add(worker) for worker in range(3)]
    told: list[tuple[int, int | None]] = []
    heard: list[int] = []

    def go_on() -> bool:
        return [worker for worker, _ in told] == [2]

    results = remote.run(
        targets,
        RemoteCall(
            lambda asked: "echo up" if asked.worker == 2 else words.HANG,
            sink=lambda worker, *_: heard.append(worker),
            timeout_s=None,
            should_stop=go_on,
            on_end=lambda result: told.append((result.worker, result.exit_status)),
        ),
    )
    assert told[0] == (2, 0)
    assert sorted(told[1:]) == [(0, None), (1, None)]
    assert [result.exit_status for result in results] == [None, None, 0]
