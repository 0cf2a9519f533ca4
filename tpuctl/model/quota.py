"""Quotas of Compute Engine and of the TPU API, as data.

Chips of Compute Engine's own machines are another pool than those of the TPU API: on-demand ones by family and
region or, where a generation has one, by a quota of its own; preemptible ones by region or zone. No page of
Google's has these ids: users read them with `gcloud quotas info list --service=compute.googleapis.com`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from tpuctl.model.accelerators import Generation
from tpuctl.model.hosts import Api, Tier

PREEMPTIBLE_TIERS = frozenset({Tier.SPOT, Tier.PREEMPTIBLE, Tier.FLEX_START})
"""Tiers that draw on preemptible quotas: https://cloud.google.com/tpu/docs/quota, and the flex-start page."""

QUOTA_SERVICES: Mapping[Api, str] = {Api.TPU: "tpu.googleapis.com", Api.COMPUTE: "compute.googleapis.com"}
"""Whose quotas hold back the TPUs that an API makes."""

_GENERATIONS = {"2s": "v2", "3s": "v3", "4s": "v4", "5s": "v5e", "5P": "v5p", "6E": "v6e"}


_QUOTA_ID = re.compile(
    r"TPUV(?P<generation>2s|3s|4s|5s|5P|6E)(?P<preemptible>Preemptible)?(?P<pod>Litepod|Pod)?"
    r"(?P<serving>Serving)?PerProjectPer(?:Zone|Region)ForTPUAPI"
)

_MACHINE_GENERATIONS = {"V5P": "v5p", "V6E": "v6e", "7X": "tpu7x"}
_MACHINE_QUOTA_ID = re.compile(
    r"(?P<preemptible>PREEMPTIBLE-)?TPU-?(?P<generation>V5P|V6E|7X|TPU7X)-per-project-(?:zone|region)"
)
_FAMILY_QUOTA_ID = "TPUS-PER-TPU-FAMILY-per-project-region"

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
    """A quota of TPUs in one zone or region: of the TPU API in the unit of its generation (chips or
    TensorCores), of Compute Engine in chips.

    `serving` is the separate quota on which v5e slices of up to 8 chips draw. `family` is what the API calls
    the machines that it is for, if it is for one family.
    """

    quota_id: str
    location: str
    limit: int
    generation: str
    preemptible: bool
    serving: bool = False
    pod: bool = False
    api: Api = Api.TPU
    family: str = ""

    @property
    def pool(self) -> str:
        """What draws on it, in words."""
        kind = f"{'preemptible ' * self.preemptible}{'serving ' * self.serving}{self.generation}"
        whose = f" of Compute Engine ({self.quota_id})" if self.api is Api.COMPUTE else ""
        return f"{kind} in {self.location}{whose}"

    def covers(self, generation: str, tier: Tier, api: Api = Api.TPU) -> bool:
        """Whether slices of a generation and tier draw on it, where that API makes them."""
        alike = (self.generation, self.api) == (generation, api)
        return alike and self.preemptible is (tier in PREEMPTIBLE_TIERS)

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
        return _parse_machine_quota(quota_id, location, limit)
    return TpuQuota(
        quota_id,
        location,
        limit,
        _GENERATIONS[found["generation"]],
        found["preemptible"] is not None,
        serving=found["serving"] is not None,
        pod=found["pod"] is not None,
    )


def _parse_machine_quota(quota_id: str, location: str, limit: int) -> TpuQuota | None:
    found = _MACHINE_QUOTA_ID.fullmatch(quota_id)
    if found is None:
        return None
    generation = _MACHINE_GENERATIONS[found["generation"].removeprefix("TPU")]
    preemptible = found["preemptible"] is not None
    return TpuQuota(quota_id, location, limit, generation, preemptible, api=Api.COMPUTE)


def parse_family_quota(
    quota_id: str, location: str, limit: int, family: str, generation: Generation | None
) -> TpuQuota | None:
    """The limit of one family of Compute Engine's machines, which are of `generation`; None for another id, and
    for a family that is not known."""
    if quota_id != _FAMILY_QUOTA_ID or generation is None:
        return None
    return TpuQuota(quota_id, location, limit, generation.name, False, api=Api.COMPUTE, family=family)
