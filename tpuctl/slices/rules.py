"""The ways to ask for capacity as a table: what excludes what, what needs what, and how the API is told."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from tpuctl.model.cloud import Tier
from tpuctl.slices.request import Ask, refused


class Way(Struct, frozen=True):
    """One flag: what it asks for, what it cannot stand with, what it needs, and how the API is told."""

    flag: str
    value: str
    asks: str
    api: str
    excludes: tuple[str, ...] = ()
    needs: str = ""

    @property
    def text(self) -> str:
        return f"{self.flag} {self.value}".strip()


_TIERS = ("--spot", "--preemptible", "--on-demand", "--reserved", "--flex-start")
_NO_QUEUE = ("--direct",)

WAYS: tuple[Way, ...] = (
    Way("--spot", "", "spot capacity: cheap, may be taken away at any time", "v2 `spot`", _TIERS),
    Way(
        "--preemptible",
        "",
        "the older kind of spot, at most 24 hours; asked for directly",
        "v2 `schedulingConfig.preemptible`",
        (*_TIERS, "--queued"),
    ),
    Way("--on-demand", "", "capacity that stays", "v2 `guaranteed`", _TIERS),
    Way("--reserved", "", "capacity of a reservation, any of the project's", "v2 `reservationName`", _TIERS),
    Way("--reservation", "NAME", "this reservation", "v2 `reservationName`", _NO_QUEUE, "--reserved"),
    Way(
        "--flex-start",
        "",
        "capacity for a fixed time of up to 7 days, in some zones; draws on preemptible quota",
        "v2alpha1 `provisioningModel`",
        (*_TIERS, "--direct"),
        "--run-duration",
    ),
    Way("--run-duration", "4h", "for how long", "v2alpha1 `runDuration`", (), "--flex-start"),
    Way("--queued", "", "wait in the queue; the default", "`queuedResources`", ("--preemptible", "--direct")),
    Way("--direct", "", "ask for the node itself, without a place in a queue", "`nodes`", ("--queued",)),
    Way(
        "--valid-until",
        "TIME",
        "nothing is created after this",
        "v2 `queueingPolicy`",
        ("--direct", "--preemptible", "--valid-for"),
    ),
    Way(
        "--valid-for",
        "6h",
        "each request waits at most this long",
        "v2 `queueingPolicy`",
        ("--direct", "--preemptible", "--valid-until"),
    ),
    Way("--topology", "4x4x12", "a shape, with a generation as ACCELERATOR", "v2 `acceleratorConfig`"),
    Way(
        "--slices",
        "N",
        "several slices in one request, as one failure domain",
        "v2 `multisliceParams`",
        ("--direct", "--preemptible"),
    ),
    Way("--network", "NAME", "VPC network", "v2 `networkConfig`"),
    Way("--subnetwork", "NAME", "subnetwork in the zone's region", "v2 `networkConfig`"),
    Way("--internal-ips", "", "no external addresses", "v2 `networkConfig`"),
    Way("--service-account", "EMAIL", "whose permissions programs on the hosts have", "v2 `serviceAccount`"),
    Way("--tag", "TAG", "network tag for firewall rules; repeatable", "v2 `tags`"),
    Way("--label", "K=V", "label on the nodes; repeatable", "v2 `labels`"),
    Way("--metadata", "K=V", "entry of the metadata server; repeatable", "v2 `metadata`"),
    Way("--boot-disk", "GIB", "size of the boot disk instead of 100 GiB", "v2alpha1 `bootDiskConfig`"),
    Way("--startup-script", "FILE", "runs as root at every boot of every host", "v2 `metadata`"),
)
"""All of them, in the order of the table in the documents. Refusals follow from `excludes` and `needs`."""


def said(ask: Ask, tier: Tier) -> frozenset[str]:
    """The flags of `WAYS` that `ask` amounts to."""
    values = {
        "--reservation": ask.reservation,
        "--run-duration": ask.run_duration_s,
        "--valid-until": ask.valid_until,
        "--valid-for": ask.valid_for_s,
        "--topology": ask.topology,
        "--slices": ask.slices if ask.slices != 1 else None,
        "--queued": True if ask.queued else None,
        "--direct": True if ask.queued is False else None,
    }
    return frozenset({f"--{tier}", *(flag for flag, value in values.items() if value is not None)})


def check_together(ask: Ask, tier: Tier) -> None:
    """Raises UsageError for what excludes each other, and for what lacks its other half."""
    flags = said(ask, tier)
    for way in WAYS:
        if way.flag not in flags:
            continue
        for other in way.excludes:
            if other in flags and other != way.flag:
                hint = _REASONS.get((way.flag, other), f"keep {way.flag}")
                raise refused(way.flag, f"{way.flag} and {other} exclude each other", hint)
        if way.needs and way.needs not in flags:
            needed = next(found for found in WAYS if found.flag == way.needs)
            raise refused(way.flag, f"{way.flag} needs {way.needs}: {needed.asks}", f"add {needed.text}")


_REASONS: Mapping[tuple[str, str], str] = {
    ("--preemptible", "--queued"): "queued resources have spot in its place: --spot",
    ("--flex-start", "--direct"): "flex-start comes through the queue only: leave out --direct",
    ("--valid-until", "--direct"): "a direct request does not wait: leave out --direct",
    ("--valid-for", "--direct"): "a direct request does not wait: leave out --direct",
    ("--slices", "--direct"): "several slices come through the queue only: leave out --direct",
    ("--reservation", "--direct"): "a direct request cannot name its reservation: leave out --direct",
    ("--slices", "--preemptible"): "several slices come through the queue only: --spot",
}
"""Hints for pairs where a reason helps more than `keep the first`."""
