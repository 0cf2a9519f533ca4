"""One agent on a host answers request after request, each as if it was the first."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing

import pytest
from msgspec.structs import replace

from tests.ssh.conftest import AGENT
from tests.ssh.test_host_agent import until
from tests.support.sshd import SshFarm
from tpuctl.hosts.agent import HostAgent, Reply
from tpuctl.hosts.commands import EXIT_NOT_INSTALLED, NOT_INSTALLED_LINE
from tpuctl.hosts.protocol import ReachReply, parse_reply
from tpuctl.hosts.requests import HelloRequest, ReachRequest
from tpuctl.model.cloud import HostTarget
from tpuctl.model.hosts import FailureKind, RemoteResult
from tpuctl.ssh.keys import KeyPair
from tpuctl.ssh.paramiko_tuning import paramiko
from tpuctl.ssh.remote import SshRemote
from tpuctl.ssh.served import READY, SMALL, ServedAnswer, read_small


def servers(farm: SshFarm) -> set[int]:
    """The agents that wait for a request, without the forks that do one."""
    found = {pid for pid, line in farm.processes().items() if line.split()[-1:] == ["serve"]}
    return {pid for pid in found if parent(pid) not in found}


def parent(pid: int) -> int:
    """0 for a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def greeted(agent: HostAgent, target: HostTarget) -> bool:
    return agent.ask([target], HelloRequest())[0].value is not None


@pytest.fixture
def server(farm: SshFarm, agent: HostAgent, target: HostTarget) -> int:
    assert greeted(agent, target)
    [pid] = servers(farm)
    return pid


def test_requests_are_answered_without_another_start(
    farm: SshFarm, agent: HostAgent, target: HostTarget, server: int
) -> None:
    refused = agent.ask([target], ReachRequest(address="", port=-1, seconds=1))[0]
    assert refused.error == "host-error"
    assert greeted(agent, target)
    assert servers(farm) == {server}


def test_what_brings_the_agent_goes_on_and_answers(farm: SshFarm, agent: HostAgent, target: HostTarget) -> None:
    call = agent.agent_call("hello", b"{}\n", lasts=True)
    assert call.server is not None
    never = replace(
        call.server, command=f"printf '{NOT_INSTALLED_LINE.decode()}' >&2; exit {EXIT_NOT_INSTALLED}"
    )
    [result] = agent.remote.run([target], replace(call, server=never))
    assert (result.exit_status, result.stderr) == (0, b"")
    assert parse_reply(result.stdout)["worker_id"] == "0"
    assert len(servers(farm)) == 1


def test_what_waits_keeps_nobody_from_unmounting_something(server: int) -> None:
    assert os.readlink(f"/proc/{server}/cwd") == "/"


def kill_server(_farm: SshFarm, server: int, _port: int) -> None:
    os.kill(server, signal.SIGKILL)


def cut(farm: SshFarm, _server: int, port: int) -> None:
    """And waits until this side knows: a request that is sent before that is lost."""
    known = [each for each in threading.enumerate() if isinstance(each, paramiko.Transport)]
    mine = [each for each in known if each.is_active() and each.getpeername()[1] == port]
    assert mine
    farm.drop_connections()
    until(lambda: not any(each.is_alive() for each in mine), "the end")


@pytest.mark.parametrize("strike", [kill_server, cut])
def test_a_server_that_went_between_two_requests_is_replaced(
    farm: SshFarm,
    agent: HostAgent,
    target: HostTarget,
    server: int,
    strike: Callable[[SshFarm, int, int], None],
) -> None:
    strike(farm, server, target.port)
    assert greeted(agent, target)
    until(lambda: server not in farm.processes(), "the end of the first server")
    assert len(servers(farm)) == 1


@pytest.fixture
def long() -> Iterator[ReachRequest]:
    """A request that takes 20 s: its port has no room for another connection."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        yield ReachRequest(address="127.0.0.1", port=full.getsockname()[1], seconds=20)


def interrupt(
    farm: SshFarm,
    agent: HostAgent,
    target: HostTarget,
    server: int,
    request: ReachRequest,
    strike: Callable[[int], None],
) -> Reply[ReachReply]:
    """The answer to a request that `strike` hits: it is called with the number of the process that does it."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: agent.ask([target], request)[0])
        strike(until(lambda: next((pid for pid in farm.processes() if parent(pid) == server), 0), "a fork"))
        return asked.result()


def test_a_request_whose_process_is_killed_says_so_and_the_next_is_answered(
    farm: SshFarm, agent: HostAgent, target: HostTarget, server: int, long: ReachRequest
) -> None:
    reply = interrupt(farm, agent, target, server, long, lambda fork: os.kill(fork, signal.SIGKILL))
    assert (reply.error, reply.message) == ("signal", "the command was killed by a signal")
    assert greeted(agent, target)
    assert servers(farm) == {server}


def test_a_request_whose_server_is_killed_is_not_made_twice(
    farm: SshFarm, agent: HostAgent, target: HostTarget, server: int, long: ReachRequest
) -> None:
    reply = interrupt(farm, agent, target, server, long, lambda _fork: os.kill(server, signal.SIGKILL))
    assert reply.error == "signal"
    assert len(farm.processes()) == 1, "only what the server had begun goes on"
    assert greeted(agent, target)


def test_a_request_that_is_lost_before_anything_is_heard_is_not_made_twice(
    farm: SshFarm, agent: HostAgent, target: HostTarget, server: int
) -> None:
    agent.remote.rest()
    until(lambda: server not in farm.processes(), "the end of the server")
    asked = farm.folder / "home-0" / "asked"

    def ask(verb: str) -> RemoteResult:
        call = agent.agent_call(verb, b"{}\n", lasts=True)
        assert call.server is not None
        recorded = f"tee -a {asked} | {{ {call.server.command}; }}"
        return agent.remote.run([target], replace(call, server=replace(call.server, command=recorded)))[0]

    assert ask("hello").ok
    [taker] = servers(farm)
    os.kill(taker, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, "usage")
        until(lambda: b"usage" in asked.read_bytes(), "the arrival of the request")
        farm.drop_connections()
        result = waiting.result()
    os.kill(taker, signal.SIGCONT)
    assert result.failure is FailureKind.LOST
    until(lambda: not servers(farm), "the end of what was asked")
    assert asked.read_bytes().count(b"usage") == 1


def test_what_did_not_answer_in_time_is_not_asked_again(
    farm: SshFarm, agent: HostAgent, target: HostTarget, server: int, long: ReachRequest
) -> None:
    assert agent.ask([target], long, timeout_s=0.5)[0].error == "timeout"
    assert greeted(agent, target)
    assert servers(farm) - {server}


def test_requests_at_the_same_time_leave_one_server(
    farm: SshFarm, agent: HostAgent, target: HostTarget, server: int
) -> None:
    together = threading.Barrier(4)

    def ask() -> bool:
        together.wait()
        return greeted(agent, target)

    with ThreadPoolExecutor(4) as pool:
        assert all(each.result() for each in [pool.submit(ask) for _ in range(4)])
    until(lambda: len(servers(farm)) == 1, "the end of the others")


def test_a_call_that_is_over_does_not_cut_off_the_next_one(
    farm: SshFarm, agent: HostAgent, target: HostTarget, server: int, long: ReachRequest
) -> None:
    """Whatever ends a call closes its channels, but not one that another call has by now."""
    with ThreadPoolExecutor(1) as pool:

        def fail(_result: RemoteResult) -> None:
            asked.append(pool.submit(lambda: agent.ask([target], long)[0]))
            until(lambda: any(parent(pid) == server for pid in farm.processes()), "a fork")
            raise KeyboardInterrupt

        asked: list[Future[Reply[ReachReply]]] = []
        with pytest.raises(KeyboardInterrupt):
            agent.remote.run([target], replace(agent.agent_call("hello", b"{}\n", lasts=True), on_end=fail))
        assert not wait(asked, timeout=1.0).done, "one that is cut off ends at once"
        for fork in [pid for pid in farm.processes() if parent(pid) == server]:
            os.kill(fork, signal.SIGKILL)
        assert asked[0].result().error == "signal"
    assert servers(farm) == {server}


def test_what_one_new_host_is_asked_keeps_no_other_from_getting_the_agent(
    farm: SshFarm, key: KeyPair, long: ReachRequest
) -> None:
    """What brings it goes on and answers, which may take hours: only what it brings waits for its turn."""

    def forks() -> list[int]:
        return [pid for pid in farm.processes() if parent(pid) in servers(farm)]

    targets = [farm.add(0), farm.add(1)]
    with closing(SshRemote(key.private_path, max_remedies=1)) as remote, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(HostAgent(remote, AGENT.read_bytes()).ask, targets, long)
        until(lambda: len(forks()) == 2, "an answer under way on both")
        for fork in forks():
            os.kill(fork, signal.SIGKILL)
        assert [reply.error for reply in asked.result()] == ["signal", "signal"]


def test_who_rests_leaves_nothing_on_hosts(
    farm: SshFarm, agent: HostAgent, target: HostTarget, server: int
) -> None:
    assert not agent.remote.rest()
    until(lambda: not farm.processes(), "the end of the server")
    assert greeted(agent, target)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("form", [bytes, lambda given: [given[:5], given[5:9], given[9:]]])
def test_what_is_sent_is_whole_however_it_comes_and_however_long_it_is(more: int, form: Callable) -> None:
    given = os.urandom(SMALL + more)
    whole, rest = read_small(form(given))
    assert whole == (None if more else given)
    assert b"".join([rest] if isinstance(rest, bytes) else rest) == given


def test_what_a_login_script_prints_is_no_answer(agent: HostAgent, target: HostTarget) -> None:
    assert greeted(agent, target)
    agent.remote.rest()
    call = agent.agent_call("hello", b"{}\n", lasts=True)
    assert call.server is not None
    noisy = replace(
        call.server, command=f"echo Welcome to b and o; printf 'no new mail'; {call.server.command}"
    )
    for _ in range(2):
        [result] = agent.remote.run([target], replace(call, server=noisy, timeout_s=20.0))
        assert (result.exit_status, result.stderr) == (0, b"")
        assert parse_reply(result.stdout)["worker_id"] == "0"
        assert b"mail" not in result.stdout


SAID = b"b\0\0\0\0o\0\0\0\x05hello" + b"e\0\0\0\x03odd" + b"o\0\0\0\x06 there" + b"x\0\0\0\x01" + b"3"


@pytest.mark.parametrize("size", range(1, len(SAID) + 1))
def test_an_answer_is_read_in_whatever_pieces_it_comes(size: int) -> None:
    heard: list[tuple[str, bytes]] = []
    answer = ServedAnswer(lambda *piece: heard.append(piece) is None, is_first=True)
    said = b"You have mail\n" + READY + SAID
    for start in range(0, len(said), size):
        assert answer.ending is None
        assert answer.take("stdout", said[start : start + size])
    assert heard == [("stdout", b"hello"), ("stderr", b"odd"), ("stdout", b" there")]
    assert answer.begun
    assert answer.ending is not None
    assert answer.ending.exit_status == 3


def test_an_answer_that_nobody_takes_waits_and_loses_nothing() -> None:
    heard: list[bytes] = []
    ready = False
    answer = ServedAnswer(lambda _, data: ready and heard.append(data) is None, is_first=False)
    assert answer.take("stdout", SAID[:-3])
    assert not answer.take("stdout", SAID[-3:])
    ready = True
    assert answer.take("stdout", SAID[-3:])
    assert heard == [b"hello", b"odd", b" there"]
    assert answer.ending is not None
