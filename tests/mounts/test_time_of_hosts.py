"""How long hosts take to get a mount, in the time of hosts in memory: that of the slowest one, not the sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.support.jobs import bring_up
from tests.support.memory.process import scripted
from tests.support.memory.services import MemoryPlace
from tpuctl.hosts.facts import FactsReply, Section
from tpuctl.hosts.provision import Operation, job_id
from tpuctl.things.driver import bring_hosts

SIZES: Mapping[int, Mapping[str, Any]] = {2: {}, 32: {"accelerator_type": "v4-256", "hosts": 32, "chips": 128}}


class Ran:
    """Wants that a program ran well on this host, in the place of a mount."""

    name = "a program"
    sections = frozenset({Section.JOBS})
    operation = Operation("run", "running mend", {"argv": ["mend"]})

    def plan(self, facts: FactsReply) -> Sequence[Operation]:
        done = {job.attempt for job in facts.jobs or () if job.succeeded}
        return () if job_id([self.operation]) in done else [self.operation]

    def row(self, _facts: FactsReply) -> Mapping[str, str]:
        return {}


def brought(hosts: int, answer_s: float) -> tuple[float, list[int]]:
    """Seconds that it takes, and how many commands each host was sent."""
    place = MemoryPlace()
    try:
        services = place.machine()
        record = bring_up(services, "big", **SIZES[hosts])
        place.hosts.programs["mend"] = scripted(2.0)
        place.hosts.answer_s = answer_s
        before = [len(host.commands_seen) for host in place.hosts.all()]
        began = place.clock.now()
        bring_hosts(services, record, [Ran()])
        sent = [len(host.commands_seen) for host in place.hosts.all()]
        return place.clock.now() - began, [after - first for first, after in zip(before, sent, strict=True)]
    finally:
        place.close()


@pytest.mark.parametrize("answer_s", [0.0, 3.0])
def test_32_hosts_take_the_time_of_two_and_each_is_asked_as_often(answer_s: float) -> None:
    (few_s, few), (wide_s, wide) = brought(2, answer_s), brought(32, answer_s)
    assert len(wide) == 32
    assert set(wide) == set(few) == {2}
    assert wide_s == pytest.approx(few_s, rel=0.05)
    assert few_s >= 2 * answer_s
