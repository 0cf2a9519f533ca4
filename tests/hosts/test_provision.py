"""What comes next on one host, from its facts alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tpuctl.hosts.facts import FactsReply, FailedOperation, HostJob, Section
from tpuctl.hosts.protocol import MalformedReplyError
from tpuctl.hosts.provision import Failures, Operation, ProvisionFailure, files_of, job_id, plan_host
from tpuctl.model.verdict import Blocked

TOUCH = Operation("run", "touching", {"argv": ["touch", "x"]})
RUN = "provision-st"


class Asked:
    """Wants whatever it is told to want."""

    name = "a thing"
    sections = frozenset({Section.SPACE})

    def __init__(self, plan: Sequence[Operation] | Blocked) -> None:
        self._plan = plan

    def plan(self, _facts: FactsReply) -> Sequence[Operation] | Blocked:
        return self._plan

    def row(self, _facts: FactsReply) -> Mapping[str, str]:
        return {}


def host(*jobs: HostJob, time: float = 1000.0, **more: Any) -> FactsReply:
    return FactsReply(time=time, boot_id="b", jobs=jobs, **more)


def job(state: str = "exited", exit_status: int | None = 0, **more: Any) -> HostJob:
    more = {"run": RUN, "attempt": job_id([TOUCH]), "ended_at": 990.0, "of": 1, **more}
    return HostJob(state=state, exit_status=exit_status, **more)


def test_a_host_that_is_as_asked_is_left_alone() -> None:
    plan = plan_host(0, host(job()), [Asked(())], RUN)
    assert (plan.begin, plan.waits, plan.failure, plan.blocked) == ((), "", None, None)


def test_operations_of_all_kinds_are_one_job_in_their_order() -> None:
    other = Operation("run", "other", {"argv": ["true"]})
    assert plan_host(0, host(), [Asked([TOUCH]), Asked(()), Asked([other])], RUN).begin == (TOUCH, other)


def test_what_is_blocked_does_not_keep_others_waiting() -> None:
    plan = plan_host(0, host(), [Asked(Blocked("no root")), Asked([TOUCH])], RUN)
    assert (plan.begin, plan.blocked) == ((TOUCH,), Blocked("no root"))


def test_a_kind_is_blocked_where_the_host_cannot_tell_what_it_needs() -> None:
    plan = plan_host(0, host(failed={"space": "OSError: x"}), [Asked([TOUCH])], RUN)
    assert plan.begin == ()
    assert plan.blocked == Blocked("a thing: the host cannot tell: OSError: x")


def test_a_job_at_work_is_waited_for_whosever_it_is() -> None:
    going = job("running", None, doing="mounting", of=3, done=1)
    assert plan_host(0, host(going), [Asked([TOUCH])], RUN).waits == "mounting (1 of 3 done)"
    assert plan_host(0, host(going), [Asked([])], "provision-x").waits == "mounting for st (1 of 3 done)"


def test_what_was_undone_since_is_done_again_at_once() -> None:
    plan = plan_host(0, host(job()), [Asked([TOUCH])], RUN)
    assert (plan.begin, plan.anew, plan.failure) == ((TOUCH,), True, None)


def test_what_ends_well_twice_without_effect_is_a_failure() -> None:
    plan = plan_host(0, host(job(tries=2)), [Asked([TOUCH])], RUN)
    assert plan.begin == ()
    assert plan.failure is not None
    assert plan.failure.message == "it ended well, but the host is not as asked"


@pytest.mark.parametrize(
    ("tries", "since_s", "again"),
    [(1, 14, False), (1, 15, True), (2, 29, False), (2, 30, True), (9, 600, True)],
)
def test_a_failure_is_tried_again_later_and_later(tries: int, since_s: float, again: bool) -> None:
    failed = job(exit_status=1, failed=FailedOperation("touching", "no room"), tries=tries)
    plan = plan_host(0, host(failed, time=990.0 + since_s), [Asked([TOUCH])], RUN)
    assert bool(plan.begin) == again
    once = plan_host(0, host(failed, time=990.0 + since_s), [Asked([TOUCH])], RUN, retry=False)
    assert once.begin == ()
    assert once.failure is not None
    assert (once.failure.title, once.failure.message, once.failure.tries) == ("touching", "no room", tries)


def test_what_a_person_has_to_change_is_told_first_with_the_hint_of_its_host() -> None:
    refusal = FailedOperation("touching", "x is full", permanent=True, hint="make room", on_host="ls x")
    plan = plan_host(1, host(job(exit_status=1, failed=refusal), time=990.0), [Asked([TOUCH])], RUN)
    assert plan.failure is not None
    slow = ProvisionFailure(0, "touching", "no answer", 2, False, ".tpuctl/log")
    both = Failures((slow, plan.failure))
    assert both.why == "touching failed on workers 0-1: x is full"
    assert both.hint("st") == "make room: tpuctl exec --worker 1 st -- ls x"
    assert Failures((slow,)).hint("st") == "tpuctl exec --worker 0 st -- tail -n 50 .tpuctl/log"


@pytest.mark.parametrize(("tries", "again"), [(1, True), (2, True), (3, False)])
def test_a_killed_job_is_begun_again_even_where_failures_are_not(tries: int, again: bool) -> None:
    killed = job("lost", None, tries=tries)
    plan = plan_host(0, host(killed, time=2000.0), [Asked([TOUCH])], RUN, retry=False)
    assert bool(plan.begin) == again


def test_a_job_is_known_by_all_that_it_does() -> None:
    with_file = Operation("run", "touching", {"argv": ["touch", "x"]}, {"x": b"1"})
    changed = Operation("run", "touching", {"argv": ["touch", "x"]}, {"x": b"2"})
    assert len({job_id([TOUCH]), job_id([with_file]), job_id([changed]), job_id([TOUCH, TOUCH])}) == 4
    with pytest.raises(ValueError, match="two operations bring a file x"):
        files_of([with_file, changed])


@pytest.mark.parametrize(
    "odd", [{}, {"time": "x", "boot_id": "b"}, {"time": 1.0, "boot_id": "b", "space": [3]}]
)
def test_facts_that_make_no_sense_are_no_answer(odd: dict[str, Any]) -> None:
    with pytest.raises(MalformedReplyError):
        FactsReply.parse(odd)
