"""Which TPUs are ours and unwanted: labels and intents decide, names never."""

from __future__ import annotations

import pytest

from tests.support.builders import LABELS, STORE, a_node, a_queued, a_slice, an_incarnation
from tpuctl.inventory.resources import Caller, Fate, gather, judge
from tpuctl.model.cloud import INCARNATION_LABEL, OWNER_LABEL, STORE_LABEL, USER_LABEL
from tpuctl.model.records import Desired, SliceState

ME = Caller(STORE, "ada")
MINE = {**LABELS, USER_LABEL: "ada"}
UP = a_slice()
DOWN = a_slice(desired=Desired.DOWN, state=SliceState.GONE)


def fate(node, *records, caller=ME) -> Fate:
    return judge(node.resource, {record.name: record for record in records}, caller).fate


def test_what_a_wanted_slice_stands_for_stays():
    assert fate(a_node(labels=MINE), UP) is Fate.WANTED


@pytest.mark.parametrize(
    "record",
    [None, DOWN, a_slice(desired=Desired.DOWN, state=SliceState.DELETING)],
    ids=["no intent", "gone", "being taken down"],
)
def test_ours_without_an_intent_goes(record):
    assert fate(a_node(labels=MINE), *([record] if record else [])) is Fate.DELETE


def test_an_earlier_incarnation_goes_and_a_newer_one_than_the_record_stays():
    record = a_slice(last_incarnation=3, incarnation=an_incarnation(number=3, cloud_name="big-3"))
    ages = {
        number: fate(a_node(name=f"big-{number}", labels={**MINE, INCARNATION_LABEL: str(number)}), record)
        for number in (1, 2, 3, 4)
    }
    assert ages == {1: Fate.DELETE, 2: Fate.DELETE, 3: Fate.WANTED, 4: Fate.WANTED}


@pytest.mark.parametrize("state", list(SliceState))
def test_the_current_incarnation_of_a_wanted_slice_stays_in_every_state_but_gone(state):
    record = a_slice(state=state)
    expected = Fate.DELETE if state is SliceState.GONE else Fate.WANTED
    assert fate(a_node(labels=MINE), record) is expected


def test_another_persons_goes_only_with_all_users():
    node = a_node(labels={**LABELS, USER_LABEL: "bob"})
    assert fate(node) is Fate.OTHER_USER
    assert fate(node, caller=Caller(STORE, "ada", all_users=True)) is Fate.DELETE
    assert fate(a_node(labels=LABELS)) is Fate.OTHER_USER


def test_another_fleets_never_goes():
    node = a_node(labels={**MINE, STORE_LABEL: "another"})
    assert fate(node, caller=Caller(STORE, "ada", all_users=True)) is Fate.OTHER_FLEET


@pytest.mark.parametrize(
    "labels", [{}, {OWNER_LABEL: "big"}, {STORE_LABEL: STORE}], ids=["none", "slice", "store"]
)
def test_a_name_alone_proves_nothing(labels):
    everyone = Caller(STORE, "ada", all_users=True)
    assert fate(a_node(labels=labels), DOWN, caller=everyone) is Fate.LOOKALIKE
    assert fate(a_node(name="big-2", labels=labels), DOWN, caller=everyone) is Fate.UNMANAGED
    assert fate(a_node(name="other", labels=labels), DOWN, caller=everyone) is Fate.UNMANAGED


def test_a_label_that_is_no_number_keeps():
    assert fate(a_node(labels={**MINE, INCARNATION_LABEL: "x"})) is Fate.WANTED


def test_an_adopted_one_stays_even_after_down_was_asked():
    record = a_slice(
        desired=Desired.DOWN, incarnation=an_incarnation(adopted_uid="42"), state=SliceState.DELETING
    )
    assert fate(a_node(name="big-1", labels=MINE), record) is Fate.WANTED
    assert fate(a_node(name="big-1", labels=MINE, uid="43"), record) is Fate.DELETE


def test_a_label_value_is_compared_as_it_was_written():
    node = a_node(labels={**LABELS, USER_LABEL: "ada-lovelace"})
    assert fate(node, caller=Caller(STORE, "Ada.Lovelace")) is Fate.DELETE


def test_a_node_goes_with_its_queued_resource_and_alone_without_one():
    both = gather([a_node(queued_resource="big-1")], [a_queued()])
    assert [(found.kind, found.name) for found in both] == [("queued", "big-1")]
    alone = gather([a_node(queued_resource="big-1"), a_node(name="x")], [])
    assert [(found.kind, found.name) for found in alone] == [("node", "big-1"), ("node", "x")]
    elsewhere = gather([a_node(queued_resource="big-1")], [a_queued(zone="us-east1-d")])
    assert len(elsewhere) == 2
