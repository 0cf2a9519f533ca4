"""Which flags about capacity go together: what excludes what, and what needs what."""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl.errors import UsageError
from tpuctl.model.cloud import Tier
from tpuctl.model.slice_spec import SliceRequest

_TIERS = ("--spot", "--preemptible", "--on-demand", "--reserved", "--flex-start")

EXCLUDES: Mapping[str, tuple[str, ...]] = {
    "--spot": _TIERS,
    "--preemptible": (*_TIERS, "--queued"),
    "--on-demand": _TIERS,
    "--reserved": _TIERS,
    "--reservation": ("--direct",),
    "--flex-start": (*_TIERS, "--direct"),
    "--run-duration": (),
    "--queued": ("--preemptible", "--direct"),
    "--direct": ("--queued",),
    "--valid-until": ("--direct", "--preemptible", "--valid-for"),
    "--valid-for": ("--direct", "--preemptible", "--valid-until"),
    "--slices": ("--direct", "--preemptible"),
    "--race": ("--reserved", "--disk"),
}
"""What a flag cannot stand with, itself aside, in the order in which contradictions are looked for."""

NEEDS: Mapping[str, tuple[str, str]] = {
    "--reservation": ("--reserved", "capacity of a reservation, any of the project's"),
    "--flex-start": ("--run-duration 4h", "for how long"),
    "--run-duration": (
        "--flex-start",
        "capacity for a fixed time of up to 7 days, in some zones; draws on preemptible quota",
    ),
}
"""What a flag needs beside it, and what that asks for."""


def given_flags(request: SliceRequest, tier: Tier) -> frozenset[str]:
    """The flags of these tables that a request for `tier` amounts to."""
    values = {
        "--reservation": request.reservation,
        "--run-duration": request.run_duration,
        "--valid-until": request.valid_until,
        "--valid-for": request.valid_for,
        "--slices": request.slices if request.slices != 1 else None,
        "--queued": True if request.queued else None,
        "--direct": True if request.queued is False else None,
        "--race": True if request.race else None,
        "--disk": request.disk or None,
    }
    return frozenset({f"--{tier}", *(flag for flag, value in values.items() if value is not None)})


def check_together(request: SliceRequest, tier: Tier) -> None:
    """Raises UsageError for what excludes each other, and for what lacks its other half."""
    given = given_flags(request, tier)
    for flag, excluded in EXCLUDES.items():
        if flag not in given:
            continue
        for other in excluded:
            if other in given and other != flag:
                hint = _REASONS.get((flag, other), f"keep {flag}")
                raise UsageError.of(_field(flag), f"{flag} and {other} exclude each other", hint)
        needed, purpose = NEEDS.get(flag, ("", ""))
        name = needed.partition(" ")[0]
        if name and name not in given:
            raise UsageError.of(_field(flag), f"{flag} needs {name}: {purpose}", f"add {needed}")


def _field(flag: str) -> str:
    """The field of a request that a flag sets."""
    if flag in _TIERS:
        return "tier"
    return "queued" if flag == "--direct" else flag.removeprefix("--").replace("-", "_")


_REASONS: Mapping[tuple[str, str], str] = {
    ("--preemptible", "--queued"): "queued resources have spot in its place: --spot",
    ("--flex-start", "--direct"): "flex-start comes through the queue only: leave out --direct",
    ("--valid-until", "--direct"): "a direct request does not wait: leave out --direct",
    ("--valid-for", "--direct"): "a direct request does not wait: leave out --direct",
    ("--slices", "--direct"): "several slices come through the queue only: leave out --direct",
    ("--reservation", "--direct"): "a direct request cannot name its reservation: leave out --direct",
    ("--race", "--reserved"): "a reservation is in one zone: leave out --race",
    ("--race", "--disk"): "a disk is in one zone: attach it when the slice is up, with tpuctl disk attach",
    ("--slices", "--preemptible"): "several slices come through the queue only: --spot",
}
"""Hints for pairs where a reason helps more than `keep the first`."""
