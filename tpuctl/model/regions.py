"""Which zones a bucket is near to."""

from __future__ import annotations

from tpuctl.lib.names import region_of
from tpuctl.model.facts import BucketPlace


def is_near(place: BucketPlace, zone: str) -> bool:
    """Whether traffic between a bucket and a zone stays in one region, or in the bucket's own multi-region.

    Places: https://cloud.google.com/storage/docs/locations.
    """
    region, location = region_of(zone), place.location.lower()
    if place.regions:
        return region in place.regions
    multi = {"us": "us-", "eu": "europe-", "asia": "asia-"}
    if location in multi:
        return region.startswith(multi[location])
    known = {"nam4": ("us-central1", "us-east1"), "eur4": ("europe-north1", "europe-west4")}
    return region in known.get(location, (location,))
