"""Quotas of Compute Engine and of the TPU API, as data."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from tpuctl.model.cloud import Tier

PREEMPTIBLE_TIERS = frozenset({Tier.SPOT, Tier.PREEMPTIBLE, Tier.FLEX_START})
"""Tiers that draw on preemptible quotas: https://cloud.google.com/tpu/docs/quota, and the flex-start page."""


_GENERATIONS = {"2s": "v2", "3s": "v3", "4s": "v4", "5s": "v5e", "5P": "v5p", "6E": "v6e"}


_QUOTA_ID = re.compile(
    r"TPUV(?P<generation>2s|3s|4s|5s|5P|6E)(?P<preemptible>Preemptible)?(?P<pod>Litepod|Pod)?"
    r"(?P<serving>Serving)?PerProjectPer(?:Zone|Region)ForTPUAPI"
)


SMALL_UNITS: Mapping[str, int] = {"v2": 8, "v3": 8, "v5e": 8}
"""Generation → up to how much of its quota a slice draws on a quota of its own: single devices of v2 and v3,
and v5e up to eight chips, which draw on the one for serving (https://cloud.google.com/tpu/docs/quota; a refusal
of a v5litepod-8 that names TPUV5sLitepodServingPerProjectPerZoneForTPUAPI is in many public repositories)."""


class ComputeQuota(Struct, frozen=True):
    """A quota of Compute Engine as the API shows it; `region` is empty for one of the whole project."""

    metric: str
    limit: int
    usage: int
    region: str = ""

    @property
    def free(self) -> int:
        return max(0, self.limit - self.usage)

    @property
    def place(self) -> str:
        return self.region or "the project"


class TpuQuota(Struct, frozen=True):
    """A quota of the TPU API in one zone or region, in the unit of its generation (chips or TensorCores).

    `serving` is the separate quota on which v5e slices of up to 8 chips draw.
    """

    quota_id: str
    location: str
    limit: int
    generation: str
    preemptible: bool
    serving: bool = False
    pod: bool = False

    def covers(self, generation: str, tier: Tier) -> bool:
        """Whether slices of a generation and tier draw on it."""
        return self.generation == generation and self.preemptible is (tier in PREEMPTIBLE_TIERS)

    def takes(self, units: int) -> bool:
        """Whether a slice that takes so much of the quota of this generation draws on this one."""
        small = units <= SMALL_UNITS.get(self.generation, 0)
        if self.generation == "v5e":
            return self.serving is small
        return self.pod is not small if self.generation in SMALL_UNITS else True


class ProjectInfo(Struct, frozen=True):
    """The project in Compute Engine: its metadata (which every VM inherits) and its own quotas."""

    metadata: Mapping[str, str]
    quotas: tuple[ComputeQuota, ...]


def parse_tpu_quota(quota_id: str, location: str, limit: int) -> TpuQuota | None:
    """A limit of the Cloud Quotas API; None for ids that are not about TPU capacity (request rates, …)."""
    found = _QUOTA_ID.fullmatch(quota_id)
    if found is None:
        return None
    return TpuQuota(
        quota_id,
        location,
        limit,
        _GENERATIONS[found["generation"]],
        found["preemptible"] is not None,
        serving=found["serving"] is not None,
        pod=found["pod"] is not None,
    )
