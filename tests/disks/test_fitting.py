"""The type of a disk by the generations of its zone."""

from __future__ import annotations

import pytest

from tpuctl.disks.fitting import generations_in, new_type_in, shared_type_in
from tpuctl.disks.rules import DiskRules
from tpuctl.errors import UsageError
from tpuctl.model.requests import Purpose, parse_purpose
from tpuctl.model.shipped_files import load_disk_rules

RULES = DiskRules(load_disk_rules())
V6E_ALONE, V4_ALONE, MIXED, OLD, NOWHERE = (
    "us-east4-a",
    "us-central2-b",
    "us-east5-b",
    "us-central1-a",
    "nowhere-1-a",
)


def test_the_zones_of_these_tests_have_what_they_are_for() -> None:
    assert generations_in(V6E_ALONE) == ("v6e",)
    assert generations_in(V4_ALONE) == ("v4",)
    assert {"v5e", "v6e"} <= set(generations_in(MIXED))
    assert not {"v6e", "v4"} & set(generations_in(OLD))
    assert generations_in(NOWHERE) == ()


@pytest.mark.parametrize(
    ("own", "zone", "generation", "wanted"),
    [
        ("hyperdisk-balanced", V6E_ALONE, "", "hyperdisk-ml"),
        ("pd-balanced", V6E_ALONE, "", "hyperdisk-ml"),
        ("hyperdisk-balanced", V4_ALONE, "", "pd-balanced"),
        ("pd-balanced", OLD, "", "pd-balanced"),
        ("hyperdisk-balanced", MIXED, "v6e", "hyperdisk-ml"),
        ("hyperdisk-balanced", MIXED, "v5e", "pd-balanced"),
        ("hyperdisk-ml", MIXED, "", "hyperdisk-ml"),
        ("pd-balanced", NOWHERE, "", "pd-balanced"),
    ],
)
def test_a_copy_fits_the_slices_of_its_zone(own: str, zone: str, generation: str, wanted: str) -> None:
    assert shared_type_in(RULES, own, zone, generation) == wanted


@pytest.mark.parametrize("own", ["hyperdisk-balanced", "pd-balanced"])
def test_where_generations_differ_somebody_has_to_say(own: str) -> None:
    with pytest.raises(UsageError, match=f"slices in {MIXED} need disks of different types") as caught:
        shared_type_in(RULES, own, MIXED)
    assert "pd-balanced for v5e, v5p; hyperdisk-ml for v6e" in caught.value.message
    assert str(caught.value.hint).startswith("--for v6e")


def test_a_new_disk_is_of_the_type_of_its_zone() -> None:
    assert new_type_in(RULES, V6E_ALONE) == "hyperdisk-balanced"
    assert (
        new_type_in(RULES, V4_ALONE) == new_type_in(RULES, OLD) == new_type_in(RULES, NOWHERE) == "pd-balanced"
    )
    assert new_type_in(RULES, MIXED, "v6e") == "hyperdisk-balanced"
    with pytest.raises(UsageError, match="pd-balanced for v5e, v5p; hyperdisk-balanced for v6e"):
        new_type_in(RULES, MIXED)


def test_what_a_disk_is_for_is_an_accelerator_or_a_generation() -> None:
    assert parse_purpose("v6e") == Purpose("v6e", 1)
    assert parse_purpose("v6e-256") == Purpose("v6e", 64)
    assert parse_purpose("v5e-16") == Purpose("v5e", 4)
    with pytest.raises(UsageError, match="no accelerator type"):
        parse_purpose("v6x-8")
