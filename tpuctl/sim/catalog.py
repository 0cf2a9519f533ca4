"""Which accelerators, zones and runtime versions the simulated cloud offers."""

from __future__ import annotations

from dataclasses import dataclass

CONFIG_TYPES = {
    "V2": "v2",
    "V3": "v3",
    "V4": "v4",
    "V5LITE_POD": "v5e",
    "V5P": "v5p",
    "V6E": "v6e",
}
"""`AcceleratorConfig.Type` of google-cloud-tpu 1.28 → generation."""


@dataclass(frozen=True)
class Offer:
    """One accelerator type as the simulator sells it."""

    name: str
    generation: str
    chips: int
    hosts: int
    topology: str
    zones: tuple[str, ...]
    runtime_versions: tuple[str, ...]

    @property
    def config_type(self) -> str:
        """`AcceleratorConfig.Type`, e.g. V4."""
        return next(kind for kind, generation in CONFIG_TYPES.items() if generation == self.generation)

    @property
    def chips_per_host(self) -> int:
        return self.chips // self.hosts


class SimCatalog:
    """Offers by name; lookups only, no arithmetic on names."""

    def __init__(self, offers: list[Offer]) -> None:
        self._offers = {offer.name: offer for offer in offers}

    def find(self, name: str) -> Offer | None:
        return self._offers.get(name)

    def find_config(self, config_type: str, topology: str) -> Offer | None:
        """The offer for an `acceleratorConfig`."""
        generation = CONFIG_TYPES.get(config_type)
        return next(
            (o for o in self._offers.values() if o.generation == generation and o.topology == topology), None
        )

    def zones(self) -> list[str]:
        return sorted({zone for offer in self._offers.values() for zone in offer.zones})

    def in_zone(self, zone: str) -> list[Offer]:
        return [offer for offer in self._offers.values() if zone in offer.zones]

    def runtime_versions(self, zone: str) -> list[str]:
        return sorted({version for offer in self.in_zone(zone) for version in offer.runtime_versions})


def load_catalog() -> SimCatalog:
    base = ("tpu-ubuntu2204-base", "tpu-vm-v4-base", "tpu-vm-base", "v2-alpha")
    rows = [
        ("v2-8", "v2", 4, 1, "2x2", ("us-central1-b", "us-central1-c", "europe-west4-a"), base),
        ("v3-8", "v3", 4, 1, "2x2", ("us-central1-a", "us-central1-b", "europe-west4-a"), base),
        ("v4-8", "v4", 4, 1, "2x2x1", ("us-central2-b",), base),
        ("v4-16", "v4", 8, 2, "2x2x2", ("us-central2-b",), base),
        ("v4-32", "v4", 16, 4, "2x2x4", ("us-central2-b",), base),
        ("v4-64", "v4", 32, 8, "2x4x4", ("us-central2-b",), base),
        ("v4-128", "v4", 64, 16, "4x4x4", ("us-central2-b",), base),
        ("v4-256", "v4", 128, 32, "4x4x8", ("us-central2-b",), base),
        ("v4-512", "v4", 256, 64, "4x8x8", ("us-central2-b",), base),
        ("v5litepod-8", "v5e", 8, 1, "2x4", ("us-central1-a", "europe-west4-b"), ("v2-alpha-tpuv5-lite",)),
        ("v6e-8", "v6e", 8, 1, "2x4", ("us-east1-d", "europe-west4-a"), ("v2-alpha-tpuv6e",)),
        ("v6e-16", "v6e", 16, 4, "4x4", ("us-east1-d", "europe-west4-a"), ("v2-alpha-tpuv6e",)),
    ]
    return SimCatalog([Offer(*row) for row in rows])
