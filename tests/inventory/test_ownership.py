"""What a TPU must show before it is deleted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.builders import LABELS, STORE, a_node, a_queued, a_slice, an_incarnation
from tpuctl.inventory.ownership import check_ownership, claim_of
from tpuctl.model.cloud import OWNER_LABEL, STORE_LABEL, USER_LABEL, CloudResource

ADAS = {**LABELS, USER_LABEL: "ada"}


def read(**changes: object) -> CloudResource:
    return a_node(**{"labels": ADAS, **changes}).resource


def refused(again: CloudResource, first: CloudResource | None = None, **record: object) -> str:
    slice_record = a_slice(**record)
    claim = claim_of(slice_record, slice_record.incarnation, STORE, again.kind)
    found = check_ownership(first or again, again, claim)
    return "" if found is None else f"{found.why} | {found.hint}"


def test_what_carries_all_labels_of_the_intent_and_was_read_before_is_ours():
    assert refused(read()) == ""
    assert refused(a_queued(labels=ADAS).resource) == ""


def test_another_node_of_that_name_is_not():
    assert "shows another" in refused(read(uid="43"), read())


@pytest.mark.parametrize("label", LABELS)
def test_every_label_of_the_fleet_counts(label):
    other = read(labels={**ADAS, label: "another"})
    assert f"carries no label {label}={LABELS[label]}" in refused(other)
    missing = read(labels={key: value for key, value in ADAS.items() if key != label})
    assert "tpuctl adopt big-1 --zone us-central2-b" in refused(missing)


def test_whose_it_is_and_what_to_type_is_said():
    said = refused(read(labels={**ADAS, USER_LABEL: "bob"}))
    assert said == (
        "big-1 in us-central2-b carries tpuctl-user=bob: it is bob's, of the fleet store-1, not ada's | "
        "ask them, or tpuctl down big --all-users; if it is yours: tpuctl adopt big-1 --zone us-central2-b"
    )
    assert "carries no label tpuctl-user" in refused(read(labels=LABELS))


def test_what_cannot_be_adopted_as_it_is_names_the_command_that_deletes_it():
    dead = a_queued(labels={**ADAS, USER_LABEL: "bob"}).resource
    assert "gcloud compute tpus queued-resources delete --force big-1 --zone us-central2-b" in refused(dead)


def test_all_users_means_the_fleet_all_the_same():
    assert refused(read(labels={**ADAS, USER_LABEL: "bob"}), any_user=True) == ""
    assert "carries no label" in refused(read(labels={**ADAS, STORE_LABEL: "another"}), any_user=True)


def test_a_user_is_compared_as_a_label_shows_it():
    assert refused(read(labels={**ADAS, USER_LABEL: "ada-example-org"}), owner="Ada@example.org") == ""


def test_the_adopted_is_known_by_its_identity_whatever_its_request_was_labelled():
    old = {**ADAS, STORE_LABEL: "lost", USER_LABEL: "bob"}
    born = "2026-01-01T00:00:00Z"
    life = an_incarnation(adopted_uid="42", adopted_request=born)
    assert refused(a_queued(labels=old, create_time=born).resource, incarnation=life) == ""
    assert refused(read(labels={}), incarnation=life) == ""
    assert "it is bob's" in refused(read(labels={USER_LABEL: "bob"}), incarnation=life)
    later = a_queued(labels=old, create_time="2026-02-01T00:00:00Z").resource
    assert "is not the queued that was adopted" in refused(later, incarnation=life)


def test_a_part_of_a_multislice_needs_the_labels_too():
    part = read(name="big-1-0", labels={**ADAS, OWNER_LABEL: "huge"})
    assert "carries no label" in refused(part, replace(part))
