"""States of groups: one node out of many hosts, for whatever is seen of these."""

from __future__ import annotations

import itertools

import pytest

from tpuctl.cloud.group_states import (
    ENDED,
    HOST_STATES,
    STATES,
    Action,
    GroupStatus,
    HostEnd,
    HostState,
    Lost,
    ends_filter,
    group_state,
    how_ended,
)
from tpuctl.model.cloud import NodeState

STATUS = {
    state: next((s for s, of in HOST_STATES.items() if of is state), "NEVER_HEARD_OF") for state in HostState
}
"""A status of Compute Engine for each state of a host but MISSING, which has none."""


def seen(worst: HostState, action: Action, end: HostEnd, target: int = 3) -> GroupStatus:
    """All hosts run but the last."""
    last = () if worst is HostState.MISSING else (STATUS[worst],)
    return GroupStatus(target, (*["RUNNING"] * (target - 1), *last), action, end)


ANYTHING_DONE = list(itertools.product(Action, HostEnd))


def test_the_table_has_each_pair_once_and_no_more():
    assert set(STATES) == set(itertools.product(HostState, Action))
    assert set(ENDED) == set(HostEnd) - {HostEnd.UNPROVEN}


@pytest.mark.parametrize("worst", HostState)
def test_a_slice_is_as_whole_as_its_worst_host(worst):
    taken = (HostEnd.PREEMPTED, HostEnd.HOST_ERROR, HostEnd.MAINTENANCE, HostEnd.SHUT_DOWN)
    for action, end in ANYTHING_DONE:
        given = seen(worst, action, end)
        state, why = group_state(given)
        assert (given.worst, bool(why)) == (worst, True), (action, end)
        lost = worst in (HostState.STOPPED, HostState.MISSING) and action is not Action.DELETING
        expected = {
            NodeState.READY: worst is HostState.RUNNING and action is Action.NONE,
            NodeState.DELETING: action is Action.DELETING,
            NodeState.PREEMPTED: lost and end in taken,
            NodeState.STOPPED: lost and end is HostEnd.BY_HAND,
            NodeState.TERMINATED: lost and end is HostEnd.TIME_OVER,
        }
        assert {each: state is each for each in expected} == expected, (action, end)


UNPROVEN = "nothing proves yet how they ended"


@pytest.mark.parametrize(
    ("given", "state", "why"),
    [
        (GroupStatus(1, ("RUNNING",)), NodeState.READY, "all of its hosts run"),
        (GroupStatus(2, (), Action.CREATING), NodeState.CREATING, "0 of 2 hosts run, 2 not there"),
        (
            GroupStatus(2, ("RUNNING", "STAGING"), Action.CREATING),
            NodeState.CREATING,
            "1 of 2 hosts run, 1 is STAGING",
        ),
        (GroupStatus(2, ("RUNNING",)), NodeState.UNKNOWN, f"1 of 2 hosts run, 1 not there, {UNPROVEN}"),
        (
            GroupStatus(1, ("BROKEN",)),
            NodeState.UNKNOWN,
            "0 of 1 host run, 1 is BROKEN, which this tpuctl does not know",
        ),
        (GroupStatus(0), NodeState.STOPPED, "0 of 0 hosts run: somebody stopped or deleted them"),
        (
            GroupStatus(2, ("RUNNING", "STOPPING")),
            NodeState.UNKNOWN,
            f"1 of 2 hosts run, 1 is STOPPING, {UNPROVEN}",
        ),
        (
            GroupStatus(1, ("TERMINATED",), end=HostEnd.SHUT_DOWN),
            NodeState.PREEMPTED,
            "0 of 1 host run, 1 is TERMINATED: they were stopped from inside",
        ),
        (
            GroupStatus(1, ("TERMINATED",), end=HostEnd.HOST_ERROR),
            NodeState.PREEMPTED,
            "0 of 1 host run, 1 is TERMINATED: the machines below them failed",
        ),
        (
            GroupStatus(2, ("RUNNING", "TERMINATED"), end=HostEnd.PREEMPTED),
            NodeState.PREEMPTED,
            "1 of 2 hosts run, 1 is TERMINATED: Compute Engine preempted them",
        ),
        (
            GroupStatus(2, (), Action.CREATING, HostEnd.PREEMPTED),
            NodeState.PREEMPTED,
            "0 of 2 hosts run, 2 not there: Compute Engine preempted them",
        ),
        (
            GroupStatus(2, ("RUNNING", "TERMINATED"), end=HostEnd.BY_HAND),
            NodeState.STOPPED,
            "1 of 2 hosts run, 1 is TERMINATED: somebody stopped or deleted them",
        ),
    ],
)
def test_a_state_is_told_with_its_reason(given, state, why):
    assert group_state(given) == (state, why)


def operation(kind: str, name: str, host_id: str, at: str = "2026-11-26T08:00:00.000-08:00", **more):
    link = f"https://www.googleapis.com/compute/v1/projects/p/zones/z/instances/{name}"
    return {"operationType": kind, "targetLink": link, "targetId": host_id, "insertTime": at, **more}


PREEMPTED = operation("compute.instances.preempted", "big-1-w-002", "22")
MEMBERS = "big-1-w-[0-9]{3,}"
AT = 1795708800.0  # the time of these operations


@pytest.mark.parametrize(
    ("operations", "lost", "end"),
    [
        ([PREEMPTED], Lost({"22": AT - 60}), HostEnd.PREEMPTED),
        ([PREEMPTED], Lost({"22": AT + 60}), HostEnd.UNPROVEN),  # it was started again after that
        ([PREEMPTED], Lost({"23": AT - 60}), HostEnd.UNPROVEN),  # an earlier one of that name
        ([PREEMPTED], Lost(members=MEMBERS, since=AT - 60), HostEnd.PREEMPTED),
        ([PREEMPTED], Lost(members=MEMBERS, since=AT + 60), HostEnd.UNPROVEN),
        ([PREEMPTED], Lost(members=MEMBERS, there=["big-1-w-002"]), HostEnd.UNPROVEN),
        ([PREEMPTED], Lost(members="big-1-[a-z0-9]{4}"), HostEnd.UNPROVEN),  # of another group
        ([PREEMPTED], Lost(), HostEnd.UNPROVEN),
        ([operation("compute.instances.preempted", "", "22")], Lost(), HostEnd.UNPROVEN),
        ([operation("compute.instances.hostError", "a", "22")], Lost({"22": 0}), HostEnd.HOST_ERROR),
        (
            [operation("compute.instances.terminateOnHostMaintenance", "a", "22")],
            Lost({"22": 0}),
            HostEnd.MAINTENANCE,
        ),
        ([operation("compute.instances.guestTerminate", "a", "22")], Lost({"22": 0}), HostEnd.SHUT_DOWN),
        (
            [operation("stop", "a", "22"), operation("compute.instances.guestTerminate", "a", "22")],
            Lost({"22": 0}),
            HostEnd.BY_HAND,
        ),
        ([operation("compute.instances.deferredStop", "a", "22")], Lost({"22": 0}), HostEnd.TIME_OVER),
        ([operation("compute.instances.deferredDelete", "a", "22")], Lost(members="a"), HostEnd.TIME_OVER),
        ([operation("stop", "a", "22")], Lost({"22": 0}), HostEnd.BY_HAND),
        ([operation("stop", "a", "22", error={"errors": [{"code": "X"}]})], Lost({"22": 0}), HostEnd.UNPROVEN),
        ([operation("setLabels", "a", "22")], Lost({"22": 0}), HostEnd.UNPROVEN),
        (
            [operation("delete", "a", "22"), operation("compute.instances.preempted", "b", "23")],
            Lost({"22": 0, "23": 0}),
            HostEnd.PREEMPTED,
        ),
        ([], Lost({"22": 0}, "a"), HostEnd.UNPROVEN),
    ],
)
def test_operations_prove_how_hosts_ended(operations, lost, end):
    assert how_ended(operations, lost) is end


def test_ends_are_looked_for_from_when_one_can_have_been():
    assert Lost({"22": AT, "23": AT + 60}, since=5.0).earliest == AT
    assert Lost({"22": AT}, MEMBERS, since=AT - 60).earliest == AT - 60
    assert "insertTime" not in ends_filter(Lost().earliest)
    assert ends_filter(AT).startswith('((operationType="compute.instances.preempted") OR (')
    assert ends_filter(AT).endswith(') AND (insertTime>="2026-11-25T16:00:00Z")')
