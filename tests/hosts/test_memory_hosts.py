"""What the time of hosts in memory says: limits take as long as over SSH, and nobody waits for them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.clocks import FakeClock
from tests.support.memory.host import MemoryHost, MemoryHosts
from tests.support.memory.process import Process, Steps, Terminated, Wait, scripted
from tests.support.memory.remote import MemoryRemote
from tpuctl.engine.ports import RemoteCall
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.requests import NewsRequest, PrepareRequest, StartRequest, StatusRequest, StopRequest
from tpuctl.model.cloud import FailureKind, HostTarget

KEY = "ssh-ed25519 AAAAkey me"
AGENT = b"the agent"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def hosts(clock: FakeClock) -> MemoryHosts:
    return MemoryHosts(clock)


@pytest.fixture
def remote(hosts: MemoryHosts) -> MemoryRemote:
    return MemoryRemote(hosts, KEY)


@pytest.fixture
def agent(remote: MemoryRemote) -> HostAgent:
    return HostAgent(remote, AGENT)


def aim(host: MemoryHost, worker: int = 0) -> HostTarget:
    host.accepted.add(("me", "AAAAkey"))
    return HostTarget("big", worker, host.external_ip, 22, "me", host.host_key, host.internal_ip)


def test_limits_pass_on_the_clock_and_side_by_side(hosts, remote, clock):
    dead, mute, fine = (hosts.add(worker) for worker in range(3))
    targets = [aim(dead, 0), aim(mute, 1), aim(fine, 2)]
    dead.vanish()
    mute.hang()
    began = clock.now()
    results = remote.run(targets, RemoteCall("sleep 7"))
    assert [result.duration_s for result in results] == [5.0, 10.0, 7.0]
    assert clock.now() - began == 10.0


def test_a_cable_that_is_cut_shows_after_twelve_seconds_of_silence(hosts, remote, clock):
    host = hosts.add()
    target = aim(host)

    def vanish(process: Process) -> Steps:
        yield 3.0
        process.host.vanish()
        yield Wait()

    hosts.programs["vanish"] = vanish
    [result] = remote.run([target], RemoteCall("vanish", timeout_s=60.0))
    assert (result.failure, result.duration_s) == (FailureKind.LOST, 15.0)
    [again] = remote.run([target], RemoteCall("true"))
    assert (again.failure, again.duration_s) == (FailureKind.CONNECT, 5.0)


def test_the_command_in_the_session_of_a_vanished_client_dies(hosts, agent, clock):
    host = hosts.add()
    hosts.programs["work"] = scripted(600.0, lines=["a", "b"])
    agent.session([aim(host)], ["work"], lambda *_: host.vanish(), grace_s=1.0)
    host.recover()
    clock.sleep(2.0)
    host.advance()
    assert not [process for process in host.processes if process.argv == ("work",)]


def test_an_attempt_goes_on_while_nobody_looks_and_tells_the_times_of_its_life(hosts, agent, clock):
    target = aim(hosts.add())
    hosts.programs["train.py"] = scripted(3600.0, exit_status=3, lines=["one", "two"])
    began = clock.now()
    agent.ask([target], PrepareRequest(run="r", attempt="1", fence=1, bundle=None))
    request = {"run": "r", "attempt": "1", "fence": 1, "argv": ["python3", "train.py"]}
    agent.ask([target], StartRequest(**request))
    clock.sleep(7200.0)
    status = agent.ask([target], StatusRequest("r", "1"))[0].value
    assert (status.state, status.exit_status) == (WorkerState.EXITED, 3)
    assert (status.started_at, status.ended_at) == (began, began + 3600.0)


def test_a_reboot_makes_a_running_attempt_lost_and_a_program_may_handle_its_end(hosts, agent, clock):
    host = hosts.add()
    target = aim(host)

    def saving(process: Process) -> Steps:
        try:
            yield Wait()
        except Terminated:
            yield 2.0
            process.print("saved")
        return 75

    hosts.programs["train.py"] = saving
    for attempt in ("1", "2"):
        agent.ask([target], PrepareRequest(run="r", attempt=attempt, fence=1, bundle=None))
        agent.ask(
            [target], StartRequest(run="r", attempt=attempt, fence=1, argv=["python3", "train.py"], env={})
        )
        if attempt == "1":
            host.reboot()
    first = agent.ask([target], StatusRequest("r", "1"))[0].value
    assert first.state is WorkerState.LOST
    agent.ask([target], StopRequest("r", "2", 30.0))
    clock.sleep(2.0)
    second = agent.ask([target], StatusRequest("r", "2"))[0].value
    assert (second.state, second.exit_status, second.stopped) == (WorkerState.EXITED, 75, True)
    [news] = agent.read_news([target], NewsRequest("r", "2", limit=100))
    assert news.value.stdout == b"saved\n"


def test_a_firewall_between_one_machine_and_the_hosts_is_not_the_hosts_fault(hosts):
    target = aim(hosts.add())
    shut_in = MemoryRemote(hosts, KEY, reaches=lambda _host: False)
    assert shut_in.run([target], RemoteCall("true"))[0].failure is FailureKind.CONNECT
    assert MemoryRemote(hosts, KEY).run([target], RemoteCall("true"))[0].ok


def test_an_address_that_is_used_again_shows_another_key(clock):
    hosts = MemoryHosts(clock, spare_addresses=0)
    remote = MemoryRemote(hosts, KEY)
    target = aim(hosts.add())
    hosts.retire(hosts.find(target.address))
    other = hosts.add()
    assert other.external_ip == target.address
    other.accepted.add(("me", "AAAAkey"))
    assert remote.run([target], RemoteCall("true"))[0].failure is FailureKind.HOST_KEY
    assert other.users_seen == []
    assert remote.run([replace(target, host_key=other.host_key)], RemoteCall("true"))[0].ok
