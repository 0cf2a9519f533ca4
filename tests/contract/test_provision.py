"""Provisioning: the real agent on hosts of both tiers and behind sshd, and the one played in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import vocabulary as words
from tests.support.remotes import LABS, SSHD, Lab
from tests.support.require import require_isolated_hosts
from tests.support.soak import soak
from tpuctl.engine.ports import RemoteCall
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.deadline import RemoteWrapper
from tpuctl.hosts.facts import FactsReply, Section
from tpuctl.hosts.provision import (
    UNSEEN,
    Failures,
    Operation,
    Provisioned,
    Unanswered,
    Verdict,
    job_id,
    provision,
    render_operations,
)
from tpuctl.hosts.requests import FactsRequest, PrepareRequest, ProvisionRequest, StopRequest
from tpuctl.model.cloud import HostTarget, RemoteResult
from tpuctl.model.shipped_files import read_agent
from tpuctl.model.verdict import Blocked, Wait
from tpuctl.ssh.keys import KeyPair, ensure_keypair
from tpuctl.transfer.distribute import distribute
from tpuctl.transfer.tree import make_tree


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> KeyPair:
    return ensure_keypair(tmp_path_factory.mktemp("state"))


no_sshd = pytest.mark.skipif(SSHD is None, reason="OpenSSH's sshd is not installed")
EVERYWHERE = [
    "memory",
    "simulated",
    pytest.param("sshd", marks=[no_sshd, pytest.mark.soak]),
    soak("isolated"),
]
"""Isolated hosts have the same agent; environments, disks and mounts have stories there."""


@pytest.fixture(params=EVERYWHERE)
def lab(request: pytest.FixtureRequest, tmp_path: Path, key: KeyPair) -> Iterator[Lab]:
    if request.param == "isolated":
        require_isolated_hosts()
    made = LABS[request.param](tmp_path, key)
    yield made
    made.close()


@pytest.fixture
def agent(lab: Lab) -> HostAgent:
    return HostAgent(lab.remote(), read_agent())


@pytest.fixture
def target(lab: Lab) -> HostTarget:
    return lab.add(0)


class Said:
    """A kind of thing: that a job of today said something. What it said is in the results of the job."""

    name = "a word"
    sections = frozenset({Section.JOBS, Section.HOST})

    def __init__(self, *commands: str, word: str = '{"word": "yes"}') -> None:
        self.commands = commands or (f"echo '{word}'",)

    def operations(self) -> list[Operation]:
        argvs = [["sh", "-c", command] for command in self.commands]
        return [Operation("run", f"saying {i}", {"argv": argv}) for i, argv in enumerate(argvs)]

    def plan(self, facts: FactsReply) -> Sequence[Operation] | Blocked:
        return () if self.results(facts) else self.operations()

    def results(self, facts: FactsReply) -> tuple[Any, ...]:
        mine = job_id(self.operations())
        return next((job.results for job in facts.jobs or () if job.attempt == mine and job.succeeded), ())

    def row(self, facts: FactsReply) -> Mapping[str, str]:
        return {str(key): str(value) for result in self.results(facts) for key, value in result.items()}


class NoRoot(Said):
    """What cannot be had."""

    def plan(self, facts: FactsReply) -> Sequence[Operation] | Blocked:
        assert facts.host is not None
        return Blocked(f"{facts.host.user} cannot", "tpuctl exec NAME -- sudo true")


def no_files(*_: Any) -> str:
    raise AssertionError("these operations bring no files")


class Loop:
    """One slice's hosts, and what is asked of them."""

    def __init__(self, lab: Lab, agent: HostAgent, *targets: HostTarget) -> None:
        self.lab = lab
        self.agent = agent
        self.targets = targets
        self.deliver: Any = no_files

    def step(self, *kinds: Said, fence: int = 1, **more: Any) -> Verdict:
        return provision(
            self.agent,
            self.targets,
            lambda _: kinds,
            slice_name="st",
            fence=fence,
            deliver=self.deliver,
            **{"patience_s": 0.0, **more},
        )

    def settle(self, *kinds: Said, **more: Any) -> Verdict:
        """Steps until nothing is waited for."""
        found: list[Verdict] = []

        def settled() -> bool:
            found[:] = [self.step(*kinds, **more)]
            return not isinstance(found[0], Wait)

        self.lab.until(settled, "the end of provisioning")
        return found[0]

    def facts(self, *sections: Section) -> FactsReply:
        [answer] = self.agent.ask(self.targets[:1], FactsRequest(sections=list(sections)))
        assert answer.value is not None, answer
        return answer.value


@pytest.fixture
def loop(lab: Lab, agent: HostAgent, target: HostTarget) -> Loop:
    return Loop(lab, agent, target)


def test_a_host_tells_the_sections_that_are_asked_for_and_no_others(loop: Loop):
    some = loop.facts(Section.HOST, Section.SPACE)
    assert some.host is not None
    assert (some.host.worker_id, bool(some.boot_id)) == ("0", True)
    assert abs(some.time - loop.lab.clock.now()) < 60.0, "clocks of hosts are compared by it"
    assert some.space
    assert some.space[0].free_bytes > 0
    assert (some.jobs, some.pythons, some.chips) == (None, None, None)


def test_a_host_tells_everything_in_one_answer(loop: Loop):
    [answer] = loop.agent.ask(loop.targets, FactsRequest())
    facts = answer.value
    assert facts is not None, answer
    assert [name for name in Section if getattr(facts, name) is None] == []
    assert facts.failed == {}


def test_a_section_that_nobody_knows_is_refused(loop: Loop):
    [answer] = loop.agent.ask(loop.targets, FactsRequest(sections=["weather"]))
    assert answer.error == "bad-request"


def test_hosts_that_are_asked_nothing_are_not_asked(loop: Loop):
    loop.agent = HostAgent(loop.lab.remote(), b"an agent that cannot be installed")
    assert loop.step() == Provisioned(({},))


def test_what_is_asked_is_done_once_and_said_in_the_row(loop: Loop):
    first = loop.step(Said())
    assert isinstance(first, Wait)
    assert "saying 0" in first.why
    assert loop.settle(Said()) == Provisioned(({"word": "yes"},))
    before = loop.facts(Section.JOBS).jobs
    assert loop.step(Said()) == Provisioned(({"word": "yes"},))
    assert loop.facts(Section.JOBS).jobs == before


class Counting(RemoteWrapper):
    """Counts calls of hosts."""

    calls = 0

    def run(self, targets: Sequence[HostTarget], call: RemoteCall) -> list[RemoteResult]:
        self.calls += 1
        return super().run(targets, call)


def test_what_ends_soon_takes_two_calls_and_what_is_there_or_cannot_be_one(loop: Loop):
    """Starting the agent is most of what a host pays for a journey over many."""
    loop.facts(Section.HOST)  # which brings the agent
    counting = Counting(loop.lab.remote())
    loop.agent = HostAgent(counting, read_agent())
    counts = []
    for kind in (Said(), Said(), Said(words.LATE_WORD)):
        counting.calls = 0
        assert isinstance(loop.step(kind, patience_s=15.0), Provisioned)
        counts.append(counting.calls)
    assert counts == [2, 1, 2]
    counting.calls = 0
    told = tuple(UNSEEN for _ in loop.targets)
    assert isinstance(loop.step(Said("echo '{}'"), patience_s=15.0, told=told), Provisioned)
    assert counting.calls == 1


def test_a_job_at_work_is_waited_for_as_long_as_is_asked(loop: Loop):
    slow = Said(words.LATE_WORD)
    assert isinstance(loop.step(slow), Wait)
    assert isinstance(loop.step(slow, patience_s=0.01), Wait)
    assert loop.step(slow, patience_s=15.0) == Provisioned(({"word": "late"},))


def test_what_stops_one_host_is_told_with_its_hint(loop: Loop):
    said = loop.step(NoRoot())
    assert isinstance(said, Blocked)
    assert said.why.startswith("worker 0: ")
    assert said.hint == "tpuctl exec NAME -- sudo true"


def test_an_operation_that_fails_is_told_and_tried_again_later(loop: Loop):
    broken = Said("echo '{}'", words.NO_ROOM)
    assert isinstance(loop.step(broken), Wait)
    failed = loop.settle(broken)
    assert isinstance(failed, Failures)
    assert failed.why == "saying 1 failed on worker 0: no room"
    [job] = loop.facts(Section.JOBS).jobs or ()
    assert (job.tries, job.done, job.of, job.exit_status) == (1, 1, 2, 1)
    assert failed.failures[0].log == f".tpuctl/runs/{job.run}/{job.attempt}/stderr.log"


def test_a_host_takes_no_orders_of_who_lost_the_lease(loop: Loop):
    assert isinstance(loop.settle(Said(), fence=5), Provisioned)
    late = loop.step(Said(word='{"word": "no"}'), fence=4)
    assert isinstance(late, Unanswered)
    assert [reply.error for reply in late.replies] == ["stale-fence"]


def test_a_host_that_has_the_files_of_a_job_says_so_and_is_sent_nothing(loop: Loop):
    code = make_tree({"word.json": b"of the job"})

    class Brought(Said):
        def operations(self) -> list[Operation]:
            return [replace(each, files={"word.json": b"of the job"}) for each in super().operations()]

    brought = Brought()
    name = {"run": "provision-st", "attempt": job_id(brought.operations())}
    clock, nobody = loop.lab.clock, lambda _: None
    assert not distribute(loop.agent, loop.targets, code, clock=clock, emit=nobody).failed
    [reply] = loop.agent.ask(loop.targets, PrepareRequest(**name, fence=1, bundle=code.sha256))
    assert reply.value is not None, reply
    assert reply.value.prepared
    assert [job.state for job in loop.facts(Section.JOBS).jobs or ()] == ["prepared"]
    asked: list[int] = []

    def deliver(targets: Sequence[HostTarget], *_: Any) -> str:
        asked.extend(target.worker for target in targets)
        return code.sha256

    loop.deliver = deliver
    assert loop.settle(brought) == Provisioned(({"word": "yes"},))
    assert asked == []


def test_another_plan_waits_for_the_job_that_is_at_work(loop: Loop):
    slow, quick = Said("sleep 60"), Said()
    assert isinstance(loop.step(slow), Wait)

    def waits_for_it() -> bool:
        waits = loop.step(quick)
        return isinstance(waits, Wait) and "saying 0 (0 of 1 done)" in waits.why

    loop.lab.until(waits_for_it, "the name of what is at work")
    request = {"run": "provision-st", "attempt": job_id(quick.operations()), "fence": 1, "deadline_s": 60}
    [answer] = loop.agent.ask(
        loop.targets, ProvisionRequest(**request, operations=render_operations(quick.operations()))
    )
    assert answer.error == "busy"
    loop.agent.ask(loop.targets, StopRequest("provision-st", job_id(slow.operations()), 0.1))
    assert loop.settle(quick) == Provisioned(({"word": "yes"},))


@pytest.mark.parametrize("lab", ["memory", "simulated"], indirect=True)
@pytest.mark.parametrize("trouble", ["kill_supervisor", "reboot"])
def test_a_job_that_died_with_its_supervisor_or_its_host_is_begun_again(loop: Loop, trouble: str):
    slow = Said(words.LATE_WORD)
    assert isinstance(loop.step(slow), Wait)
    getattr(loop.lab, trouble)(loop.targets[0])
    if trouble == "kill_supervisor":
        loop.agent.ask(loop.targets, StopRequest("provision-st", job_id(slow.operations()), 0.0))
    assert loop.settle(slow, retry=False) == Provisioned(({"word": "late"},))
    [job] = loop.facts(Section.JOBS).jobs or ()
    assert job.tries == 2


def test_a_job_goes_on_when_its_client_does_not_come_back(loop: Loop):
    assert isinstance(loop.step(Said(words.LATE_WORD)), Wait)
    again = Loop(loop.lab, HostAgent(loop.lab.remote(), read_agent()), *loop.targets)
    assert again.settle(Said(words.LATE_WORD)) == Provisioned(({"word": "late"},))
    assert [job.tries for job in again.facts(Section.JOBS).jobs or ()] == [1]


def test_a_worker_that_does_not_answer_is_told_and_the_others_go_on(loop: Loop):
    loop.targets = (loop.targets[0], loop.lab.refuse(loop.lab.add(1)))
    said = loop.step(Said())
    assert isinstance(said, Unanswered)
    assert [(reply.worker, reply.error) for reply in said.replies] == [(1, "connect")]
    loop.targets = loop.targets[:1]
    assert isinstance(loop.settle(Said()), Provisioned)


@pytest.mark.parametrize(
    "odd",
    [{"operations": []}, {"operations": [{"kind": "magic"}]}, {"run": "r1"}, {"deadline_s": 0}, {"fence": "x"}],
)
def test_requests_that_make_no_sense_are_refused(loop: Loop, odd: dict[str, Any]):
    operations = render_operations(Said().operations())
    request = {"run": "provision-st", "attempt": "1", "fence": 1, "deadline_s": 60, "operations": operations}
    [answer] = loop.agent.call(loop.targets, "provision", {**request, **odd})
    assert answer.error == "bad-request"
