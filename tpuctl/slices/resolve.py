"""From what a user said about capacity to a checked specification of a slice.

`up`, `run --up` and the fleet file say the same things by different roads; all come through `settle`. What
cannot be is refused here, before anything is written down or asked of the cloud.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from tpuctl.errors import UsageError
from tpuctl.lib.names import check_zone_name
from tpuctl.lib.text import suggest
from tpuctl.lib.time import render_duration, render_moment
from tpuctl.model.accelerators import AcceleratorType, Catalog, Generation
from tpuctl.model.cloud import Tier
from tpuctl.model.records import SliceSpec
from tpuctl.money.grants import Grant, granted, same_pool
from tpuctl.slices.request import Ask, refused, told
from tpuctl.slices.rules import check_together
from tpuctl.slices.validation import check_values

_NUMBERS = re.compile(r"[0-9.]+")
AUTO = "auto"
"""As a zone: every one in which the slice may be."""
MAX_RUN_DURATION_S = 7 * 86_400.0
"""Flex-start gives capacity for at most 7 days (docs.cloud.google.com/tpu/docs/request-using-flex-start)."""
RUN_END_SLACK_S = 900.0
"""A flex-start slice that goes this shortly before its end has reached it: its start is seen late, by an
interval of the watchdog or more."""


class SliceChoice(Struct, frozen=True):
    """A spec, and every zone in which the slice may be, in order; `spec.zone` is the first of them."""

    spec: SliceSpec
    zones: tuple[str, ...]


def settle(ask: Ask, accelerator: str, catalog: Catalog, grants: Sequence[Grant], now: float) -> SliceChoice:
    """The slice that was asked for and where it may be, checked against rules and tables.

    Raises UsageError, with the key it is about in its details.
    """
    found = find_accelerator(catalog, accelerator, ask.topology)
    slices = 1 if ask.slices is None else ask.slices
    usable = granted(grants, found.generation, found.chips * max(slices, 1))
    tier = ask.tier or _granted_tier(usable)
    check_together(ask, tier)
    zones = choose_zones(ask, catalog, found, tier, usable)
    _check_times(ask, now)
    for zone in zones:
        _check_flex_start(ask, tier, found, zone)
        check_values(ask, zone)
    spec = SliceSpec(
        accelerator_type=found.name,
        zone=zones[0],
        tier=tier,
        runtime_version=ask.runtime_version or found.runtime_version,
        hosts=found.hosts * slices,
        chips=found.chips * slices,
        queued=tier is not Tier.PREEMPTIBLE if ask.queued is None else ask.queued,
        external_ips=ask.external_ips,
        login_user=ask.login_user,
        network=ask.network,
        subnetwork=ask.subnetwork,
        service_account=ask.service_account,
        config_type=found.config_type if ask.topology or found.by_shape else None,
        topology=found.topology if ask.topology or found.by_shape else None,
        slices=slices,
        reservation=ask.reservation,
        run_duration_s=ask.run_duration_s,
        valid_until=ask.valid_until,
        valid_for_s=ask.valid_for_s,
        boot_disk_gib=ask.boot_disk_gib,
        tags=ask.tags,
        labels=dict(ask.labels),
        metadata=dict(ask.metadata),
        startup_script=None if ask.startup_script is None else hashlib.sha256(ask.startup_script).hexdigest(),
    )
    return SliceChoice(spec, zones)


def find_accelerator(catalog: Catalog, accelerator: str, topology: str | None) -> AcceleratorType:
    """By its name, or a generation by its topology. Raises UsageError."""
    generation = catalog.find_generation(accelerator)
    if generation is None:
        found = told("ACCELERATOR", lambda: catalog.get(accelerator))
        if topology in (None, found.topology):
            return found
        raise refused(
            "--topology",
            f"{found.name} is {found.topology}, not {topology}",
            f"a shape goes with a generation: tpuctl up {found.generation} --topology {topology}",
        )
    sizes = [found for found in catalog.types.values() if found.generation == generation.name]
    if topology is None:
        hint = f"{sizes[0].name}, or --topology {sizes[-1].topology}"
        raise refused("ACCELERATOR", f"{accelerator} is a generation: say how large", hint)
    if not generation.in_tpu_api:
        return told("ACCELERATOR", lambda: catalog.get(sizes[0].name))
    shaped = catalog.shaped(generation, topology)
    if shaped is None:
        raise _no_such_shape(generation, [found.topology for found in sizes], topology)
    return shaped


def _no_such_shape(generation: Generation, shapes: Sequence[str], topology: str) -> UsageError:
    multiple = generation.custom_multiple
    rule = (
        ""
        if multiple is None
        else f", and AxBxC with A <= B <= C, all multiples of {multiple}, up to {generation.custom_chips} chips"
    )
    shown = ", ".join(shapes[:8]) + (", …" if len(shapes) > 8 else "")
    return refused(
        "--topology",
        f"{generation.name} has no topology {topology!r}; it has {shown}{rule}",
        f"--topology {shapes[min(2, len(shapes) - 1)]}",
    )


def _granted_tier(usable: Sequence[Grant]) -> Tier:
    """The only tier that is granted. There is no default beyond that: money is opt-in."""
    tiers = {grant.tier for grant in usable}
    if len(tiers) == 1:
        return tiers.pop()
    raise refused(
        "--spot",
        "no tier: say how the capacity is paid for",
        "--spot, --on-demand, --preemptible, --reserved, --flex-start; or settings: {tier: spot} in a file",
    )


def choose_zones(
    ask: Ask, catalog: Catalog, found: AcceleratorType, tier: Tier, usable: Sequence[Grant]
) -> tuple[str, ...]:
    """Every zone that was named, else that of the only grant or the only one that has the type; for `auto` all
    that the grants cover or, where the user pays, all that have the type."""
    asked = tuple(dict.fromkeys(ask.zones or ask.default_zones))
    covering = tuple(sorted({grant.zone for grant in usable if same_pool(grant.tier, tier)}))
    if AUTO in asked:
        return _automatic(ask, asked, found, tier, covering)
    if not asked and len(covering) == 1:
        asked = covering
    if not asked and len(found.zones) == 1:
        asked = tuple(found.zones)
    if not asked:
        others = ", ".join(found.zones[1:])
        hint = f"--zone {found.zones[0]}; also {others}, or --zone {AUTO} for all that is allowed"
        raise refused("--zone", f"no zone for {found.name}", hint)
    for zone in asked:
        told("--zone", partial(_check_zone, catalog, found, zone))
    return asked


def _automatic(
    ask: Ask, asked: Sequence[str], found: AcceleratorType, tier: Tier, covering: tuple[str, ...]
) -> tuple[str, ...]:
    if len(asked) > 1:
        raise refused("--zone", f"{AUTO} stands for every zone", f"--zone {AUTO}")
    having = found.flex_start_zones if tier is Tier.FLEX_START else found.zones
    zones = tuple(having) if ask.pay else tuple(zone for zone in covering if zone in having)
    if not zones:
        hint = "tpuctl grant import LETTER, or name a --zone and add --pay"
        raise refused("--zone", f"no grant covers {tier} {found.name} in any zone", hint)
    return zones


def _check_zone(catalog: Catalog, found: AcceleratorType, zone: str) -> None:
    catalog.check_zone(found, check_zone_name(zone))


def _check_flex_start(ask: Ask, tier: Tier, found: AcceleratorType, zone: str) -> None:
    if tier is not Tier.FLEX_START:
        return
    if zone not in found.flex_start_zones:
        where = ", ".join(found.flex_start_zones)
        there = f"; it is in {where}" if where else f" for {found.generation} anywhere"
        hint = f"--zone {found.flex_start_zones[0]}" if where else "--spot"
        raise refused("--zone", f"there is no flex-start for {found.name} in {zone}{there}", hint)
    if ask.run_duration_s is not None and ask.run_duration_s > MAX_RUN_DURATION_S:
        raise refused(
            "--run-duration",
            f"--run-duration {render_duration(ask.run_duration_s)} is more than the 7 days of flex-start",
            "--run-duration 7d",
        )


def _check_times(ask: Ask, now: float) -> None:
    if ask.valid_until is not None and ask.valid_until <= now:
        raise refused(
            "--valid-until",
            f"--valid-until {render_moment(ask.valid_until)} has passed: nothing could be created",
            f"it is {render_moment(now)} now; --valid-for 6h counts from now",
        )


def version_doubt(found: AcceleratorType, version: str) -> str:
    """What is odd about a runtime version that is a known one but for a slip of the hand; else empty.

    One that looks like none, or has other numbers, may be newer than the table: only the API knows all of them.
    """
    known = found.runtime_versions
    near = None if version in known else suggest(version, known, cutoff=0.8)
    if near is None or _NUMBERS.sub("#", version) == _NUMBERS.sub("#", near):
        return ""
    return f"runtime version {version} is not known for {found.name}; did you mean {near}?"


def name_of(accelerator_type: str, slices: int) -> str:
    """What a slice is called when nobody says."""
    return accelerator_type if slices == 1 else f"{accelerator_type}-x{slices}"


def internal_note(spec: SliceSpec) -> str:
    """What a slice without external addresses needs, in words."""
    return (
        f"no external addresses: its {spec.hosts} hosts reach the Internet through Cloud NAT only, and "
        "Google's APIs with Private Google Access; you reach them from inside the VPC, or by the "
        "settings iap, jump_host or proxy_command"
    )


def spent(spec: SliceSpec, *, requested_at: float, came_up_at: float | None, now: float) -> str:
    """Why the slice must not be asked for again by itself, or an empty string.

    Its time was the user's choice: `--valid-until` has passed, nothing came within `--valid-for`, or the run
    duration of flex-start is used up.
    """
    if spec.valid_until is not None and now >= spec.valid_until:
        return f"--valid-until {render_moment(spec.valid_until)} has passed"
    if came_up_at is None:
        if spec.valid_for_s is not None and now >= requested_at + spec.valid_for_s:
            return f"no capacity came within --valid-for {render_duration(spec.valid_for_s)}"
        return ""
    length = spec.run_duration_s
    if length is not None and now >= came_up_at + length - min(RUN_END_SLACK_S, length / 2):
        return f"its --run-duration of {render_duration(length)} is over"
    return ""
