"""Code goes from host to host between the passes of a watchdog, and when whoever began it is gone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.jobs import bring_up, submit
from tests.support.memory.agent import Attempt
from tests.support.memory.host import MemoryHost
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.engine.events import Note, Transfer
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.requests import CopyRequest
from tpuctl.hosts.targets import host_targets
from tpuctl.model.cloud import HostTarget
from tpuctl.model.records import RunState
from tpuctl.model.timeouts import STEP_MAX_S
from tpuctl.runs.follow import start_run
from tpuctl.runs.reconcile import advance_run
from tpuctl.runs.request import request_stop
from tpuctl.slices.enrollment import enroll_machine
from tpuctl.state.repository import get_run, get_slice
from tpuctl.transfer.host_copies import COPY_MAX_S, SERVE_IDLE_S
from tpuctl.watch.reconciler import run_pass

pytestmark = pytest.mark.slow

EIGHT = {"accelerator_type": "v4-64", "hosts": 8, "chips": 32}
MANY = {"accelerator_type": "v4-1024", "hosts": 128, "chips": 512}
CODE = "x" * 6_000_000
CODE_S = 120.0
"""What a copy of it takes from one host to another."""


@pytest.fixture
def place(place: MemoryPlace) -> MemoryPlace:
    place.hosts.programs["main.py"] = scripted(6 * 3600.0)
    place.hosts.copy_bytes_per_s = len(CODE) / CODE_S
    return place


def submitted(services: MemoryServices, spec: dict[str, Any] = EIGHT) -> str:
    bring_up(services, "big", **spec)
    return submit(services, "big", CODE).id


def copies(host: MemoryHost) -> dict[str, Attempt]:
    """What the host knows of copies, by the last word of their names."""
    found = [each for each in host.attempts() if each.run.startswith("copy-")]
    return {each.number.rpartition("-")[2]: each for each in found}


def copying(place: MemoryPlace) -> list[Attempt]:
    every = [each for host in place.hosts.all() for each in copies(host).values()]
    return [each for each in every if each.supervisor is not None]


def having(place: MemoryPlace) -> int:
    """How many hosts have the code."""
    return sum(len(CODE) in host.blob_sizes() for host in place.hosts.all())


def sent(services: MemoryServices) -> int:
    """Bytes that left this machine while it was waited for."""
    last: dict[int, int] = {}
    pass_number = 0
    for event in services.events:
        if isinstance(event, Transfer):
            pass_number += event.sent_bytes < last.get(pass_number, 0)
            last[pass_number] = event.sent_bytes
    return sum(last.values())


def notes(services: MemoryServices) -> str:
    return "\n".join(event.text for event in services.events if isinstance(event, Note))


def timed_pass(services: MemoryServices) -> str:
    """One pass, which takes no longer than a step may; why it waits."""
    began = services.clock.now()
    [line] = [each for each in run_pass(services) if each.subject != "big"]
    assert services.clock.now() - began <= 2 * STEP_MAX_S, "a look, and a step"
    return line.why


def test_what_a_pass_began_is_done_when_the_next_one_comes(place, services):
    run = submitted(services)
    why = timed_pass(services)
    assert why == "the code, which workers copy from each other: 1 of 8 have it"
    assert having(place) == 1
    place.clock.advance(CODE_S)
    assert [len(copies(host)) for host in place.hosts.all()] == [1] * 8
    assert having(place) == 8, "nobody was connected meanwhile"
    timed_pass(services)
    assert get_run(services, run).record.state is RunState.RUNNING
    assert sent(services) < 2 * len(CODE)


def test_a_pass_on_another_machine_goes_on_with_what_one_began_that_died(place, services):
    other = place.machine("server")
    enroll_machine(other)
    run = submitted(services)
    advance_run(services, run)
    advance_run(services, run)
    assert "1 of 8 have it" in timed_pass(other)
    place.clock.advance(CODE_S)
    timed_pass(other)
    assert get_run(other, run).record.state is RunState.RUNNING
    assert sent(other) == 0, "it found everything on its way"


@pytest.mark.parametrize("answer_s", [1.5, 3.0, 5.0])
def test_no_step_outlasts_its_limit_where_hosts_answer_slowly_and_copy(place, answer_s):
    services = place.machine(bytes_per_s=500_000.0)
    run = submitted(services)
    place.hosts.answer_s = answer_s
    took: list[float] = []
    while get_run(services, run).record.state is not RunState.RUNNING:
        assert len(took) < 60
        began = services.clock.now()
        acted = advance_run(services, run).acted
        took.append(services.clock.now() - began)
        place.clock.advance(0.0 if acted else 60.0)
    assert max(took) <= STEP_MAX_S
    attempt = get_run(services, run).record.attempt
    assert (attempt.number, attempt.suspect_since) == (1, None)
    assert sent(services) < 2 * len(CODE)


def test_short_copies_are_done_in_the_pass_that_began_them(place, services):
    place.hosts.copy_bytes_per_s = len(CODE) / 3.0
    run = submitted(services)
    timed_pass(services)
    assert get_run(services, run).record.state is RunState.RUNNING


def test_when_who_serves_dies_the_others_are_sent_to(place, services):
    run = submitted(services)
    timed_pass(services)
    [server] = [host for host in place.hosts.all() if "serve" in copies(host)]
    place.clock.advance(CODE_S / 4)
    server.reboot()
    place.clock.advance(CODE_S)
    for _ in range(3):
        timed_pass(services)
    assert get_run(services, run).record.state is RunState.RUNNING
    assert "could not fetch from its neighbour: cannot fetch from" in notes(services)
    assert having(place) == 8


def test_hosts_that_cannot_reach_each_other_are_sent_to(place, services):
    run = submitted(services)
    place.hosts.serving = Walled()
    for _ in range(3):
        timed_pass(services)
    assert get_run(services, run).record.state is RunState.RUNNING
    assert "connection refused" in notes(services)


class Walled(dict[Any, Any]):
    """Ports that no other host reaches."""

    def get(self, key: Any, default: Any = None) -> Any:
        return default


def test_those_that_are_done_serve_too_when_there_are_many(place, services):
    run = submitted(services, MANY)
    passes, serving = 0, {}
    while get_run(services, run).record.state is not RunState.RUNNING:
        passes += 1
        assert passes < 6
        timed_pass(services)
        serving |= {host.hostname: True for host in place.hosts.all() if "serve" in copies(host)}
        place.clock.advance(CODE_S)
    assert having(place) == 128
    assert sent(services) < 3 * len(CODE)
    assert len(serving) == 7, "sixteen each, for all that the first one did not serve"


def test_copies_end_by_themselves_when_nobody_comes_back(place, services):
    submitted(services)
    timed_pass(services)
    place.hosts.copy_bytes_per_s = 1.0
    assert copying(place)
    place.clock.advance(CODE_S + SERVE_IDLE_S + 1.0)
    assert copying(place) == []


def test_a_copy_that_hangs_ends(place, services):
    place.hosts.copy_bytes_per_s = 1.0
    submitted(services)
    timed_pass(services)
    assert len(copying(place)) == 8
    place.clock.advance(COPY_MAX_S + 1.0)
    assert copying(place) == []


def test_a_stop_ends_the_copies(place, services):
    run = submitted(services)
    timed_pass(services)
    assert len(copying(place)) == 8
    request_stop(services, run)
    timed_pass(services)
    place.clock.advance(5.0)
    assert copying(place) == []
    assert get_run(services, run).record.state is RunState.STOPPED


def test_an_attempt_ends_the_copies_of_others(place, services):
    run = submitted(services)
    agent = HostAgent(services.remote, services.agent_source)
    targets = host_targets(services, get_slice(services, "big").record)

    def request(target: HostTarget) -> CopyRequest:
        name = (f"copy-{'5a' * 8}", "earlier-1-serve")
        return CopyRequest(*name, 1, "serve", "blobs", "5a" * 32, COPY_MAX_S, target.internal_ip)

    for answer in agent.ask(targets, request):
        assert answer.value is not None
        assert answer.value.going
    before = copying(place)
    assert len(before) == 8
    start_run(services, run)
    place.clock.advance(5.0)
    assert [each for each in copying(place) if each in before] == []
