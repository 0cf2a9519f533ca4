"""A list that knows what it did not read: absence there proves nothing."""

from __future__ import annotations

import pytest

from tpuctl.model.cloud import CloudResource, Listing, ResourceKind
from tpuctl.model.disks import DiskInfo

LISTING = Listing((DiskInfo("data", "here", "1", "pd-balanced", 10, "READY"),), frozenset({"dark"}))


@pytest.mark.parametrize(
    ("zone", "name", "found", "absent"),
    [
        ("here", "data", True, False),
        ("here", "other", False, True),
        ("there", "data", False, True),
        ("dark", "data", False, False),
    ],
)
def test_only_a_zone_that_was_read_proves_absence(zone: str, name: str, found: bool, absent: bool) -> None:
    assert (LISTING.find(zone, name) is not None, LISTING.absent(zone, name)) == (found, absent)


def test_what_is_seen_in_a_zone_that_was_not_read_whole_is_there() -> None:
    seen = Listing((DiskInfo("data", "dark", "1", "pd-balanced", 10, "READY"),), frozenset({"dark"}))
    assert seen.find("dark", "data") is not None
    assert not seen.absent("dark", "data")


def test_what_has_a_location_instead_of_a_zone_is_found_by_it() -> None:
    listing = Listing((CloudResource(ResourceKind.ADDRESS, "one", "global"),))
    assert listing.find("global", "one") is not None
    assert listing.absent("global", "two")
