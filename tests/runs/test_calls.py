"""How often a run calls its hosts: each call costs a host the start of the agent, which is most of its work."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.jobs import bring_up, run_to_end, submit
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.engine.ports import RemoteCall
from tpuctl.runs.follow import follow_run, start_run, stop_run

CODE = "as registered"
LONG = CODE + "\n# a comment" * 4000


class Counting:
    """Remembers the verbs of the calls to hosts."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.verbs: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != "run":
            return found

        def run(targets: Any, call: RemoteCall) -> Any:
            if targets:
                self.verbs.append(str(call.command).rpartition(" ")[2])
            return found(targets, call)

        return run


@pytest.fixture
def services(place: MemoryPlace) -> MemoryServices:
    place.hosts.programs["main.py"] = scripted(0.1)
    made = place.machine()
    bring_up(made, "big")
    made.remote = Counting(made.remote)  # type: ignore[assignment]
    return made


FRESH = ["hello+attempts"]
"""Of hosts on which no run was prepared before."""
BEGIN = [*FRESH, "prepare+lacks"]
END = ["reach", "start", "follow", "status", "news"]


def took(services: Any) -> list[str]:
    verbs: list[str] = services.remote.verbs
    services.remote.verbs = []
    return verbs


@pytest.mark.parametrize(("code", "sent"), [(CODE, []), (LONG, ["lacks"])], ids=["short", "long"])
def test_new_code_costs_one_call_more_or_two_where_it_is_long(services, code, sent):
    run_to_end(services, "big", "other code")
    assert took(services) == [*FRESH, "receive+prepare", *END]
    run_to_end(services, "big", code)
    assert took(services) == [*BEGIN, *sent, "receive+prepare", *END]
    run_to_end(services, "big", code)
    assert took(services) == [*BEGIN, *END]


@pytest.mark.parametrize(("code", "sent"), [(CODE, []), (LONG, ["lacks"])], ids=["short", "long"])
def test_hosts_that_had_no_run_are_not_asked_whether_they_have_its_code(services, code, sent):
    run_to_end(services, "big", code)
    assert took(services) == [*FRESH, *sent, "receive+prepare", *END]


def test_hosts_prepare_when_they_have_copied_the_code_from_each_other(services):
    bring_up(services, "wide", accelerator_type="v4-64", hosts=8, chips=32)
    took(services)
    run_to_end(services, "wide", CODE + "\n# a comment" * 100_000)
    copied = ["lacks", "receive+prepare", "copy", "copy", "lacks+prepare"]
    assert took(services) == [*FRESH, *copied, *END]


def test_slow_hosts_are_not_asked_again_for_what_they_did(place, services):
    run_to_end(services, "big", CODE)
    took(services)
    place.hosts.answer_s = 3.0
    run_to_end(services, "big", CODE)
    verbs = took(services)
    assert verbs[: verbs.index("start")] == [*BEGIN, "reach"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "hosts", "looks"), [("v4-16", 2, 20), ("v4-1024", 128, 16)])
def test_who_follows_a_run_asks_many_hosts_less_often(place, services, kind, hosts, looks):
    place.hosts.programs["main.py"] = scripted(20.0)
    bring_up(services, "wide", accelerator_type=kind, hosts=hosts, chips=4 * hosts)
    run = start_run(services, submit(services, "wide", CODE).id)
    took(services)
    follow_run(services, run.id)
    assert looks - 2 <= took(services).count("status") <= looks + 2


def test_a_stop_looks_at_the_workers_before_and_after(services):
    run = start_run(services, submit(services, "big", CODE).id)
    took(services)
    stop_run(services, run.id)
    assert took(services) == ["status", "stop", "status", "news"]
