"""Whose a TPU is, proved by what it shows at the moment of its deletion.

Two reads must agree on its identity (a node's id, a queued resource's time of creation), and the second must
carry the labels of the intent that made it: fleet, slice, incarnation and user. What was adopted is known by
the server's identity instead, because queued resources can never be labelled.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from tpuctl.lib.names import label_value
from tpuctl.model.cloud import (
    INCARNATION_LABEL,
    OWNER_LABEL,
    STORE_LABEL,
    USER_LABEL,
    CloudResource,
    ResourceKind,
)
from tpuctl.model.records import Incarnation, SliceRecord
from tpuctl.model.resources import gcloud_command


class Claim(Struct, frozen=True):
    """What must be true of a TPU before it is deleted.

    `user` is the value of its user label, None for anybody's. `identity`, where set, stands for the labels: an
    id, or those of all objects of a slice.
    """

    labels: Mapping[str, str]
    user: str | None
    identity: str = ""


class Refusal(Struct, frozen=True):
    """Why a TPU is not deleted, whose it is, and what to type."""

    why: str
    hint: str


def claim_of(record: SliceRecord, incarnation: Incarnation, store_id: str, kind: ResourceKind) -> Claim:
    """What a node or a queued resource must show to be this incarnation of a slice."""
    adopted = incarnation.adopted_request if kind is ResourceKind.QUEUED else incarnation.adopted_uid
    user = None if record.any_user else label_value(record.owner)
    return Claim(owner_labels(record, incarnation, store_id), user, adopted)


def claim_as_labelled(found: CloudResource, store_id: str, user: str | None) -> Claim:
    """What was condemned by its labels must show the same ones again, of this store and `user`."""
    labels = {label: found.labels.get(label, "") for label in (OWNER_LABEL, INCARNATION_LABEL)}
    return Claim({STORE_LABEL: store_id, **labels}, user)


def check_ownership(first: CloudResource, again: CloudResource, claim: Claim) -> Refusal | None:
    """Why `again`, read right before a deletion, is not what `first` was or `claim` says; None if it is."""
    if again.uid != first.uid:
        return Refusal("the second read shows another of that name", "tpuctl ls")
    if claim.identity:
        return _disprove_adopted(again, claim)
    wrong = next(((k, v) for k, v in claim.labels.items() if again.labels.get(k) != v), None)
    if wrong is not None:
        return Refusal(f"{_place(again)} carries no label {wrong[0]}={wrong[1]}: {whose(again)}", _hint(again))
    if claim.user is not None and again.user != claim.user:
        return _of_another(again, claim.user)
    return None


def _disprove_adopted(again: CloudResource, claim: Claim) -> Refusal | None:
    """The labels of a queued resource are those it was made with, whoever has adopted it since."""
    if again.uid not in claim.identity.split(","):
        return Refusal(f"{_place(again)} is not the {again.kind} that was adopted", "tpuctl ls")
    if again.kind is not ResourceKind.QUEUED and claim.user is not None and again.user not in ("", claim.user):
        return _of_another(again, claim.user)
    return None


def _of_another(found: CloudResource, user: str) -> Refusal:
    carries = f"carries {USER_LABEL}={found.user}" if found.user else f"carries no label {USER_LABEL}"
    return Refusal(f"{_place(found)} {carries}: {whose(found)}, not {user}'s", _hint(found))


def whose(found: CloudResource) -> str:
    """To whom the labels of a TPU say that it belongs."""
    user = f"{found.user}'s" if found.user else "nobody's by its labels"
    store = found.labels.get(STORE_LABEL)
    return f"it is {user}" + (f", of the fleet {store}" if store else "")


def _hint(found: CloudResource) -> str:
    """What makes it ours again where that can be, and what deletes it otherwise."""
    slice_name = found.labels.get(OWNER_LABEL)
    ways = [f"ask them, or tpuctl down {slice_name} --all-users"] if found.user and slice_name else []
    if found.kind in _ADOPTED and found.state == "READY":
        ways.append(f"if it is yours: tpuctl adopt {found.name} --zone {found.location}")
    else:
        command = gcloud_command("delete", found.kind, found.name, found.location)
        ways.append(f"if it is yours: {command}")
    return "; ".join(ways)


_ADOPTED = frozenset({ResourceKind.NODE, ResourceKind.GROUP, ResourceKind.INSTANCE})


def _place(found: CloudResource) -> str:
    return f"{found.name} in {found.location}"


def owner_labels(record: SliceRecord, incarnation: Incarnation, store_id: str) -> dict[str, str]:
    """Labels that every billable resource of this incarnation carries."""
    return {
        OWNER_LABEL: record.name,
        INCARNATION_LABEL: str(incarnation.number),
        STORE_LABEL: store_id,
    }
