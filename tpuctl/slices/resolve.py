"""From the request of a user to a checked specification of a slice.

`up`, `run --up` and the fleet file say the same things by different roads; all come through `resolve_request`.
What cannot be is refused here, before anything is written down or asked of the cloud.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.config.settings import Config
from tpuctl.errors import UsageError, with_field
from tpuctl.lib.text import suggest
from tpuctl.lib.time import parse_duration, parse_moment, render_duration, render_moment
from tpuctl.model.accelerators import AcceleratorType, Catalog, Generation
from tpuctl.model.cloud import Api, Tier
from tpuctl.model.records import LifetimeLimits
from tpuctl.model.slice_spec import SliceOptions, SliceRequest, SliceSpec
from tpuctl.money.grants import Grant, granted
from tpuctl.slices.lifetime import WARN_BEFORE_S
from tpuctl.slices.rules import check_together
from tpuctl.slices.validation import check_values
from tpuctl.slices.zones import AUTO, check_zone, choose_zones

_NUMBERS = re.compile(r"[0-9.]+")
API_NAMES = {Api.TPU: "the Cloud TPU API", Api.COMPUTE: "Compute Engine"}
MAX_RUN_DURATION_S = 7 * 86_400.0
"""Flex-start gives capacity for at most 7 days (docs.cloud.google.com/tpu/docs/request-using-flex-start)."""
INSTANCE_RUN_S = (30.0, 120 * 86_400.0)
"""How long an instance may be asked for (docs.cloud.google.com/compute/docs/instances/limit-vm-runtime)."""
RACE_MAX = 16
"""Each place of a race counts against quotas, and each is read in every step: more than the zones of two types
are hardly meant."""
RUN_END_SLACK_S = 900.0
"""A flex-start slice that goes this shortly before its end has reached it: its start is seen late, by an
interval of the watchdog or more."""


if TYPE_CHECKING:
    from tpuctl.envs.pinned import PinnedEnvironment


class WantedSlice(Struct, frozen=True):
    """A resolved request under the name of its slice, with the terms of the user."""

    name: str
    specs: tuple[SliceSpec, ...]
    """One for each zone in which it may be, in order of preference."""
    pay: bool = False
    script: bytes | None = None
    """The content of its startup script."""
    limits: LifetimeLimits = LifetimeLimits()
    environment: PinnedEnvironment | None = None
    """None also for one that the store has."""
    gcsfuse: str | None = None
    """The program on this machine that its mounts bring to hosts."""
    without: tuple[str, ...] = ()
    """Fields of the spec that are to be empty, where nothing said means that it stays as it is."""

    @property
    def spec(self) -> SliceSpec:
        """What is wanted, in the zone that comes first."""
        return self.specs[0]

    @property
    def zones(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(spec.zone for spec in self.specs))

    @property
    def race_specs(self) -> tuple[SliceSpec, ...]:
        """All of them, where they differ in more than the zone."""
        return self.specs if len({spec.accelerator_type for spec in self.specs}) > 1 else ()


def resolve_request(
    request: SliceRequest,
    config: Config,
    catalog: Catalog,
    grants: Sequence[Grant],
    *,
    now: float,
    script: bytes | None = None,
) -> tuple[SliceSpec, ...]:
    """What a request comes to, in each zone in which the slice may be, in order of preference.

    Settings stand in for what it does not say, then rules and tables decide. `script` is the content of its
    startup script. What it asks of hosts is for `resolve_things`.

    Raises UsageError, with the field it is about in its details.
    """
    accelerator = request.accelerator or config.accelerator
    if accelerator is None:
        hint = "tpuctl up v4-32 --spot; `tpuctl types` lists them"
        raise UsageError.of("accelerator", "no accelerator type", hint)
    kinds = split_types(accelerator)
    requests = [request.of(accelerator)] if len(kinds) == 1 else _each_type(request, config, catalog, kinds)
    specs = [spec for each in requests for spec in _resolve_type(each, config, catalog, grants, now, script)]
    _check_race(request, specs)
    return tuple(specs)


def split_types(accelerator: str) -> tuple[str, ...]:
    """The types of a race, or the one that is named."""
    return tuple(dict.fromkeys(part.strip() for part in accelerator.split(",")))


def _each_type(
    request: SliceRequest, config: Config, catalog: Catalog, kinds: Sequence[str]
) -> list[SliceRequest]:
    """The request of each type of a race, in those of its zones that have it. Raises UsageError."""
    if not request.race:
        why = f"{' and '.join(kinds)} are several types, which only a race asks for"
        raise UsageError.of("accelerator", why, "--race, or one of them")
    of_one = {"topology": "--topology", "runtime_version": "--runtime-version"}
    for field, flag in of_one.items():
        if getattr(request, field) or getattr(config, field, None):
            why = f"{flag} is for one type, and {', '.join(kinds)} are several"
            raise UsageError.of(field, why, f"leave {flag} out, and the setting of that name")
    found = [find_accelerator(catalog, kind, None) for kind in kinds]
    for other in found[1:]:
        pair = (found[0], other)
        if len({(each.hosts, each.chips) for each in pair}) > 1:
            sizes = ", ".join(f"{each.name} has {each.hosts} and {each.chips}" for each in pair)
            why = f"types of a race have the same number of hosts and of chips: {sizes}"
            raise UsageError.of("accelerator", why, "types of one size, such as v5e-16,v6e-16")
    named = request.zone or config.zone
    if AUTO in named or not named:
        return [request.of(each.name) for each in found]
    within = {each.name: tuple(zone for zone in named if _has(each, zone)) for each in found}
    for each, zone in [(each, named[0]) for each in found if not within[each.name]]:
        with_field("zone", partial(check_zone, catalog, each, zone))
    for zone in named:
        if not any(zone in zones for zones in within.values()):
            with_field("zone", partial(check_zone, catalog, found[0], zone))
    return [replace(request.of(name), zone=zones) for name, zones in within.items()]


def _has(found: AcceleratorType, zone: str) -> bool:
    return zone in found.zones or zone in found.listed_zones


def _resolve_type(
    request: SliceRequest,
    config: Config,
    catalog: Catalog,
    grants: Sequence[Grant],
    now: float,
    script: bytes | None,
) -> tuple[SliceSpec, ...]:
    """As `resolve_request`, of one type."""
    run_duration_s, valid_until, valid_for_s = _times(request)
    accelerator = request.accelerator or ""
    found = find_accelerator(catalog, accelerator, request.topology)
    api = choose_api(request.api, found)
    found = found.of_api(api)
    slices = 1 if request.slices is None else request.slices
    # Grants are of the TPU API's quota: what Compute Engine makes is paid for.
    usable = granted(grants, found.generation, found.chips * max(slices, 1)) if api is Api.TPU else ()
    tier = request.tier or config.tier or _granted_tier(usable)
    check_together(request, tier, api)
    zones = choose_zones(request, config, catalog, found, tier, usable)
    shaped = (bool(request.topology) or found.by_shape) and found.config_type is not None
    # The setting names software of the TPU API, which is no image.
    set_version = config.runtime_version if api is Api.TPU else None
    of_compute = found.compute if api is Api.COMPUTE else None
    by_queue = tier is not Tier.PREEMPTIBLE if request.queued is None else request.queued
    spec = SliceSpec(
        **_as_written(request, config),
        accelerator_type=found.name,
        zone=zones[0],
        tier=tier,
        runtime_version=request.runtime_version or set_version or found.runtime_version,
        hosts=found.hosts * slices,
        chips=found.chips * slices,
        queued=by_queue and api is Api.TPU,
        external_ips=config.external_ips and not request.internal_ips,
        login_user=config.login_user,
        config_type=found.config_type if shaped else None,
        topology=found.topology if shaped or of_compute is not None else None,
        slices=slices,
        run_duration_s=run_duration_s,
        valid_until=valid_until,
        valid_for_s=valid_for_s,
        boot_disk_gib=request.boot_disk,
        tags=request.network_tag,
        labels=dict(request.label),
        startup_script=None if script is None else hashlib.sha256(script).hexdigest(),
        api=api,
        machine_type=of_compute.machine_type if of_compute is not None else "",
    )
    _check_valid_until(spec, now)
    specs = tuple(replace(spec, zone=zone) for zone in zones)
    for each in specs:
        _check_flex_start(each, found)
        check_values(each, script)
    return specs


def _check_race(request: SliceRequest, specs: Sequence[SliceSpec]) -> None:
    """Raises UsageError for a race in one place, or in too many."""
    if request.race and len(specs) < 2:
        zone = specs[0].zone
        why = f"--race asks in several zones at once, and {zone} is one"
        raise UsageError.of("race", why, f"--zone {zone} --zone ANOTHER, or --zone {AUTO}")
    if request.race and len(specs) > RACE_MAX:
        why = f"--race would ask in {len(specs)} places at once, of at most {RACE_MAX}"
        raise UsageError.of("race", why, f"--zone {specs[0].zone} --zone {specs[1].zone}: fewer zones")


def resolve_limits(request: SliceRequest) -> LifetimeLimits:
    """When a slice is to go by itself. Raises UsageError, with the field it is about in its details."""

    def seconds_of(field: str, flag: str) -> float | None:
        word = getattr(request, field)
        seconds = None if word is None else with_field(field, lambda: parse_duration(word, flag))
        if seconds is not None and seconds <= WARN_BEFORE_S:
            why = f"{flag} {word} is too short: the hosts are warned ten minutes before"
            raise UsageError.of(field, why, f"{flag} 30m")
        return seconds

    return LifetimeLimits(
        ttl_s=seconds_of("ttl", "--ttl"), idle_s=seconds_of("stop_when_idle", "--stop-when-idle")
    )


def _as_written(request: SliceRequest, config: Config) -> dict[str, Any]:
    """The options that are kept as they were written; a setting of the same name stands in for what was not."""
    written = {name: getattr(request, name) for name in SliceOptions.__struct_fields__}
    return {name: value or getattr(config, name, value) for name, value in written.items()}


def _times(request: SliceRequest) -> tuple[float | None, float | None, float | None]:
    """Run duration and validity in seconds, and until when it is valid in epoch seconds."""

    def parsed(parse: Callable[[str, str], float], field: str) -> float | None:
        word, flag = getattr(request, field), f"--{field.replace('_', '-')}"
        return None if word is None else with_field(field, lambda: parse(word, flag))

    length = parsed(parse_duration, "run_duration")
    until = parsed(parse_moment, "valid_until")
    return length, until, parsed(parse_duration, "valid_for")


def find_accelerator(catalog: Catalog, accelerator: str, topology: str | None) -> AcceleratorType:
    """By its name, or a generation by its topology. Raises UsageError."""
    generation = catalog.find_generation(accelerator)
    if generation is None:
        found = with_field("accelerator", lambda: catalog.get(accelerator))
        if topology in (None, found.topology):
            return found
        raise UsageError.of(
            "topology",
            f"{found.name} is {found.topology}, not {topology}",
            f"a shape goes with a generation: tpuctl up {found.generation} --topology {topology}",
        )
    sizes = [found for found in catalog.types.values() if found.generation == generation.name]
    if topology is None:
        hint = f"{sizes[0].name}, or --topology {sizes[-1].topology}"
        raise UsageError.of("accelerator", f"{accelerator} is a generation: say how large", hint)
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
    return UsageError.of(
        "topology",
        f"{generation.name} has no topology {topology!r}; it has {shown}{rule}",
        f"--topology {shapes[min(2, len(shapes) - 1)]}",
    )


def choose_api(said: Api | None, found: AcceleratorType) -> Api:
    """The API that makes a type: the one that was said, else the usual one. Raises UsageError."""
    if said is None or said in found.apis:
        return said or found.apis[0]
    why = f"{found.name} does not come through {API_NAMES[said]}, but through {API_NAMES[found.apis[0]]}"
    raise UsageError.of("api", why, "leave out --api")


def api_doubt(spec: SliceSpec, found: AcceleratorType) -> str:
    """What is odd about a slice by an API that is not the usual one of its type; else empty."""
    if spec.api is not Api.TPU or found.apis[0] is Api.TPU:
        return ""
    kind = spec.accelerator_type
    return f"{kind} by the Cloud TPU API is not documented: it is for projects that Google has allowed it"


def _granted_tier(usable: Sequence[Grant]) -> Tier:
    """The only tier that is granted. There is no default beyond that: money is opt-in."""
    tiers = {grant.tier for grant in usable}
    if len(tiers) == 1:
        return tiers.pop()
    raise UsageError.of(
        "tier",
        "no tier: say how the capacity is paid for",
        "--spot, --on-demand, --preemptible, --reserved, --flex-start; or write `settings: {tier: spot}` into "
        "tpuctl.yaml here, or ~/.config/tpuctl/config.yaml",
    )


def _check_flex_start(spec: SliceSpec, found: AcceleratorType) -> None:
    length = spec.run_duration_s
    least, most = INSTANCE_RUN_S
    if spec.api is Api.COMPUTE and length is not None and not least <= length <= most:
        raise UsageError.of(
            "run_duration",
            f"--run-duration {render_duration(length)} is not a time from 30 seconds to 120 days",
            "--run-duration 4h",
        )
    if spec.tier is not Tier.FLEX_START:
        return
    zone = spec.zone
    if zone not in found.flex_start_zones:
        where = ", ".join(found.flex_start_zones)
        there = f"; it is in {where}" if where else f" for {found.generation} anywhere"
        hint = f"--zone {found.flex_start_zones[0]}" if where else "--spot"
        raise UsageError.of("zone", f"there is no flex-start for {found.name} in {zone}{there}", hint)
    if spec.run_duration_s is not None and spec.run_duration_s > MAX_RUN_DURATION_S:
        raise UsageError.of(
            "run_duration",
            f"--run-duration {render_duration(spec.run_duration_s)} is more than the 7 days of flex-start",
            "--run-duration 7d",
        )


def _check_valid_until(spec: SliceSpec, now: float) -> None:
    if spec.valid_until is not None and spec.valid_until <= now:
        raise UsageError.of(
            "valid_until",
            f"--valid-until {render_moment(spec.valid_until)} has passed: nothing could be created",
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


def name_of(accelerator_types: Sequence[str], slices: int) -> str:
    """What a slice is called when nobody says; of a race it may become one of several types."""
    name = "-or-".join(dict.fromkeys(accelerator_types))
    return name if slices == 1 else f"{name}-x{slices}"


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
