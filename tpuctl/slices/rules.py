"""Which flags about capacity go together: what excludes what, what needs what, what an API does not have."""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl.errors import UsageError
from tpuctl.model.cloud import Api, Tier
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

_WAITS = "a group waits for capacity by itself until tpuctl down, and one host is asked for again"
NOT_OF_COMPUTE: Mapping[str, tuple[str, str]] = {
    "--queued": (_WAITS, "leave out --queued"),
    "--direct": (_WAITS, "leave out --direct"),
    "--preemptible": ("spot has taken its place", "--spot"),
    "--valid-until": (_WAITS, "leave out --valid-until"),
    "--valid-for": (_WAITS, "leave out --valid-for"),
    "--slices": ("a group is one slice", "tpuctl up once for each slice, or --api tpu"),
    "--race": ("it asks in one zone after the other", "several --zone without --race"),
}
"""Flags of the TPU API for which Compute Engine has nothing: why, and what to do."""


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


def check_together(request: SliceRequest, tier: Tier, api: Api = Api.TPU) -> None:
    """Raises UsageError for what excludes each other, for what lacks its other half, and for what `api` does
    not have."""
    given = given_flags(request, tier)
    if api is Api.COMPUTE:
        for flag, (why, hint) in NOT_OF_COMPUTE.items():
            if flag in given:
                raise UsageError.of(_field(flag), f"{flag} is not for TPUs of Compute Engine: {why}", hint)
    for flag, excluded in EXCLUDES.items():
        if flag not in given:
            continue
        for other in excluded:
            if other in given and other != flag:
                hint = _REASONS.get((flag, other), f"keep {flag}")
                raise UsageError.of(_field(flag), f"{flag} and {other} exclude each other", hint)
        needed, purpose = NEEDS.get(flag, ("", ""))
        name = needed.partition(" ")[0]
        if name and name not in given and (flag, api) not in _ALONE:
            raise UsageError.of(_field(flag), f"{flag} needs {name}: {purpose}", f"add {needed}")


_ALONE = frozenset({("--run-duration", Api.COMPUTE)})
"""What needs nothing beside it by that API: Compute Engine ends any instance after a given time."""


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
