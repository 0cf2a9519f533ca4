"""From what was said about capacity to a specification: what goes together, and what is refused with a hint."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import a_slice, a_spec
from tpuctl.config.settings import Layer, resolve
from tpuctl.errors import UsageError
from tpuctl.lib.codec import from_data, to_data
from tpuctl.lib.options import flags_of, registry
from tpuctl.model.cloud import Api, Tier
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.model.slice_spec import SliceRequest, SliceSpec
from tpuctl.money.grants import Grant
from tpuctl.slices.plan import node_spec
from tpuctl.slices.resolve import (
    RACE_MAX,
    RUN_END_SLACK_S,
    api_doubt,
    find_accelerator,
    name_of,
    resolve_request,
    spent,
)
from tpuctl.slices.rules import EXCLUDES, NEEDS, NOT_OF_COMPUTE, check_together

CATALOG = load_accelerators()
NOW = 1_800_000_000.0
FLEX_ZONE = "us-east5-a"


def resolved(
    accelerator: str = "v4-16", grants: tuple[Grant, ...] = (), script: bytes | None = None, **said: Any
) -> tuple[SliceSpec, ...]:
    request = SliceRequest(**{"accelerator": accelerator, "tier": Tier.SPOT, **said})
    config = resolve([Layer("test", {})], Path("/nowhere"))
    return resolve_request(request, config, CATALOG, grants, now=NOW, script=script)


def spec_of(accelerator: str = "v4-16", grants: tuple[Grant, ...] = (), **said: Any) -> SliceSpec:
    return resolved(accelerator, grants, **said)[0]


def refusal(accelerator: str = "v4-16", **said: Any) -> UsageError:
    with pytest.raises(UsageError) as refused:
        spec_of(accelerator, **said)
    assert refused.value.hint
    assert refused.value.details["key"] in SliceRequest.__struct_fields__
    return refused.value


def test_the_plain_request_is_a_queued_spot_slice_as_the_table_knows_it():
    spec = spec_of()
    assert (spec.accelerator_type, spec.zone, spec.tier, spec.hosts, spec.chips) == (
        "v4-16",
        "us-central2-b",
        Tier.SPOT,
        2,
        8,
    )
    assert (spec.queued, spec.external_ips, spec.slices, spec.topology) == (True, True, 1, None)


@pytest.mark.parametrize(
    ("said", "first", "second"),
    [
        ({"queued": False, "valid_until": "2027-01-15T08:01Z"}, "--valid-until", "--direct"),
        ({"queued": False, "valid_for": "1m"}, "--valid-for", "--direct"),
        ({"queued": False, "slices": 2}, "--slices", "--direct"),
        ({"valid_until": "2027-01-15T08:01Z", "valid_for": "1m"}, "--valid-until", "--valid-for"),
        ({"tier": Tier.FLEX_START, "run_duration": "1m", "queued": False}, "--flex-start", "--direct"),
        ({"tier": Tier.RESERVED, "reservation": "r", "queued": False}, "--reservation", "--direct"),
        ({"tier": Tier.PREEMPTIBLE, "queued": True}, "--preemptible", "--queued"),
        ({"tier": Tier.PREEMPTIBLE, "slices": 2}, "--slices", "--preemptible"),
        ({"tier": Tier.RESERVED, "race": True}, "--race", "--reserved"),
        ({"disk": ("data",), "race": True}, "--race", "--disk"),
    ],
)
def test_what_contradicts_itself_is_named_with_both_flags(said, first, second):
    error = refusal(**said)
    assert f"{first} and {second} exclude each other" in error.message


@pytest.mark.parametrize(
    ("said", "flag", "needed"),
    [
        ({"tier": Tier.FLEX_START}, "--flex-start", "--run-duration"),
        ({"run_duration": "1h"}, "--run-duration", "--flex-start"),
        ({"reservation": "r"}, "--reservation", "--reserved"),
    ],
)
def test_what_lacks_its_other_half_says_what_to_add(said, flag, needed):
    error = refusal(**said)
    assert f"{flag} needs {needed}" in error.message
    assert needed in error.hint


def test_a_race_needs_two_places():
    error = refusal("v6e-8", zone=("us-east1-d",), race=True)
    assert "us-east1-d is one" in error.message
    assert error.hint == "--zone us-east1-d --zone ANOTHER, or --zone auto"
    zones = ("us-east1-d", "us-east5-b")
    assert [spec.zone for spec in resolved("v6e-8", zone=zones, race=True)] == list(zones)


def places(accelerator: str, *zones: str) -> list[tuple[str, str, str]]:
    found = resolved(accelerator, zone=zones, race=True, pay=True)
    return [(spec.accelerator_type, spec.zone, spec.runtime_version) for spec in found]


def test_a_race_of_types_asks_for_each_in_those_of_the_zones_that_have_it():
    lite, six = "v2-alpha-tpuv5-lite", "v2-alpha-tpuv6e"
    assert places("v5e-16,v6e-16", "us-west1-c", "us-central1-b", "us-central1-a") == [
        ("v5litepod-16", "us-west1-c", lite),
        ("v5litepod-16", "us-central1-a", lite),
        ("v6e-16", "us-west1-c", six),
        ("v6e-16", "us-central1-b", six),
    ]
    assert places("v5p-32, v6e-16", "us-east5-a") == [
        ("v5p-32", "us-east5-a", "v2-alpha-tpuv5"),
        ("v6e-16", "us-east5-a", six),
    ]
    both = places("v5e-16,v6e-16", "auto")
    assert {kind for kind, _, _ in both} == {"v5litepod-16", "v6e-16"}
    assert len(both) == len(set(both)) <= RACE_MAX
    assert places("v5e-16,v5litepod-16", "us-west1-c", "us-west4-a") == [
        ("v5litepod-16", "us-west1-c", lite),
        ("v5litepod-16", "us-west4-a", lite),
    ]


@pytest.mark.parametrize(
    ("accelerator", "said", "message"),
    [
        ("v5e-16,v6e-16", {"race": False}, "which only a race asks for"),
        ("v5e-16,v6e-8", {}, "v5litepod-16 has 4 and 16, v6e-8 has 1 and 8"),
        ("v5e-16,", {}, "''"),
        ("v5e-16,v9-16", {}, "v9-16"),
        ("v5e-16,v6e-16", {"topology": "4x4"}, "--topology is for one type"),
        ("v5e-16,v6e-16", {"runtime_version": "x"}, "--runtime-version is for one type"),
        ("v5e-16,v6e-16", {"zone": ("us-west1-c", "us-central2-b")}, "not offered in zone 'us-central2-b'"),
        ("v5e-16,v6e-16", {"zone": ("us-central1-b",)}, "v5litepod-16 is not offered in zone"),
        ("v5e-16,v6e-16", {"tier": Tier.RESERVED}, "--race and --reserved"),
        ("v5e-16,v6e-16,v5p-32", {"zone": ("auto",), "pay": True}, "places at once, of at most 16"),
    ],
)
def test_a_race_of_types_that_cannot_be_is_refused(accelerator, said, message):
    said = {"race": True, "zone": ("us-west1-c",), **said}
    assert message in refusal(accelerator, **said).message


SAYING: dict[str, dict[str, Any]] = {
    "--direct": {"queued": False},
    "--queued": {"queued": True},
    "--valid-until": {"valid_until": "2027-01-15T08:01Z"},
    "--valid-for": {"valid_for": "1m"},
    "--slices": {"slices": 2},
    "--reservation": {"reservation": "r"},
    "--race": {"race": True},
    "--disk": {"disk": ("data",)},
}
TIER_FLAGS = {f"--{tier}": tier for tier in Tier}
EXCLUSIONS = [
    (flag, other)
    for flag, excluded in EXCLUDES.items()
    for other in excluded
    if not {flag, other} <= set(TIER_FLAGS) and {flag, other} != {"--queued", "--direct"}
]
"""What the table forbids; two tiers are `choose_tier`'s, and one option cannot be said both ways."""


@pytest.mark.parametrize(("first", "second"), EXCLUSIONS)
def test_every_exclusion_of_the_table_holds(first, second):
    tier = TIER_FLAGS.get(first) or TIER_FLAGS.get(second) or Tier.RESERVED
    request = SliceRequest(
        run_duration="1m" if tier is Tier.FLEX_START else None,
        **SAYING.get(first, {}),
        **SAYING.get(second, {}),
    )
    with pytest.raises(UsageError, match="exclude each other") as refused:
        check_together(request, tier)
    assert refused.value.hint


def test_every_flag_of_the_rules_is_one_of_the_request():
    known = {flag.name for name, item in registry(SliceRequest).items() for flag in flags_of(name, item)}
    named = {*EXCLUDES, *(other for excluded in EXCLUDES.values() for other in excluded), *NEEDS}
    assert named | {needed.split()[0] for needed, _ in NEEDS.values()} <= known


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"valid_until": "2027-01-15T07:59Z"}, "has passed"),
        ({"slices": 0}, "at least 1"),
        ({"boot_disk": 50}, "100 to 65536"),
        ({"network_tag": ("Bad_Tag",)}, "Bad_Tag"),
        ({"network_tag": ("a", "a")}, "twice"),
        ({"network": "My Network"}, "My Network"),
        ({"subnetwork": "projects/p/regions/europe-west4/subnetworks/s"}, "region europe-west4"),
        ({"service_account": "not-an-address"}, "not-an-address"),
        ({"label": {"tpuctl-slice": "x"}}, "set by tpuctl"),
        ({"label": {"Team": "x"}}, "Team=x"),
        ({"label": {"team": "Vision!"}}, "Vision!"),
        ({"metadata": {"ssh-keys": "x"}}, "cannot be set"),
        ({"metadata": {"startup-script": "x"}}, "cannot be set"),
        ({"metadata": {"enable-oslogin": "TRUE"}}, "with OS Login hosts ignore the keys"),
        ({"metadata": {"k": "x" * (256 * 1024 + 1)}}, "256 KiB"),
        ({"script": b"#!/bin/sh\n" + b"#" * 256 * 1024}, "256 KiB"),
        ({"script": b"  \n"}, "empty"),
        ({"script": b"\xff\xfe"}, "UTF-8"),
        ({"metadata": {str(n): "x" * 250_000 for n in range(3)}}, "512 KiB"),
        (
            {"tier": Tier.RESERVED, "reservation": "projects/p/locations/us-east1-d/reservations/r"},
            "us-east1-d",
        ),
        ({"zone": ("us-east1-d",)}, "not offered in zone"),
        ({"tier": Tier.FLEX_START, "run_duration": "1h"}, "no flex-start for v4-16"),
        ({"topology": "2x2x8"}, "v4-16 is 2x2x2"),
    ],
)
def test_bad_values_are_refused_with_a_hint(said, words):
    assert words in refusal(**said).message


def test_flex_start_is_taken_where_the_table_has_it_for_up_to_seven_days():
    flexible = {"tier": Tier.FLEX_START, "zone": (FLEX_ZONE,)}
    assert spec_of("v6e-8", run_duration="4h", **flexible).run_duration_s == 14400.0
    assert "more than the 7 days" in refusal("v6e-8", run_duration="8d", **flexible).message
    elsewhere = refusal("v6e-8", tier=Tier.FLEX_START, zone=("us-east1-d",), run_duration="1m")
    assert FLEX_ZONE in elsewhere.message


@pytest.mark.parametrize(
    ("generation", "topology", "name", "hosts"),
    [
        ("v4", "2x2x4", "v4-32", 4),
        ("v4", "4x4x12", "v4-384", 48),
        ("v4", "4x4x8", "v4-256", 32),
        ("v5p", "4x8x8", "v5p-512", 64),
        ("v5e", "4x4", "v5litepod-16", 4),
        ("v6e", "2x4", "v6e-8", 1),
    ],
)
def test_a_generation_is_asked_for_by_its_shape(generation, topology, name, hosts):
    zone = find_accelerator(CATALOG, generation, topology).zones[0]
    spec = spec_of(generation, topology=topology, zone=(zone,))
    assert (spec.accelerator_type, spec.hosts, spec.topology) == (name, hosts, topology)
    assert spec.config_type == CATALOG.get(f"{CATALOG.find_generation(generation).name_prefix}-8").config_type
    assert CATALOG.of(spec.accelerator_type, spec.topology).hosts == hosts


@pytest.mark.parametrize("topology", ["8x4x4", "4x4x6", "4x4", "2x2x8", "64x64x64", "4x4xx8", "0x4x4", ""])
def test_a_shape_that_the_generation_does_not_have_is_refused(topology):
    error = refusal("v4", topology=topology)
    assert "topology" in error.message
    assert "multiples of 4" in error.message


def test_a_generation_alone_is_not_enough():
    assert "say how large" in refusal("v5e").message


def test_several_slices_count_all_hosts_and_chips():
    spec = spec_of("v4-16", slices=3)
    assert (spec.slices, spec.hosts, spec.chips) == (3, 6, 24)
    assert CATALOG.of(spec.accelerator_type, spec.topology, spec.slices).chips == 24
    assert name_of([spec.accelerator_type], spec.slices) == "v4-16-x3"


def test_a_grant_that_is_too_small_for_all_slices_does_not_choose_the_zone():
    grants = (Grant("us-east1-d", Tier.SPOT, "v6e", 8), Grant("europe-west4-a", Tier.SPOT, "v6e", 64))
    assert spec_of("v6e-8", grants=grants, tier=None, slices=2).zone == "europe-west4-a"


def test_the_startup_script_is_kept_by_digest_and_travels_in_the_metadata():
    script = b"#!/bin/sh\necho hello\n"
    spec = spec_of(script=script, metadata={"k": "v"}, label={"team": "a"})
    assert spec.startup_script == hashlib.sha256(script).hexdigest()
    record = a_slice(spec=spec)
    sent = node_spec(record, {"tpuctl-slice": "big"}, "ada:key", script.decode())
    own = {"enable-oslogin": "FALSE", "ssh-keys": "ada:key"}
    assert sent.metadata == {"k": "v", "startup-script": script.decode(), **own}
    assert sent.labels == {"team": "a", "tpuctl-slice": "big"}


def test_owner_labels_and_keys_win_over_whatever_a_stored_specification_says():
    spec = a_spec(labels={"tpuctl-slice": "other"}, metadata={"ssh-keys": "mallory:key"})
    sent = node_spec(a_slice(spec=spec), {"tpuctl-slice": "big"}, "ada:key")
    assert sent.labels == {"tpuctl-slice": "big"}
    assert sent.metadata == {"enable-oslogin": "FALSE", "ssh-keys": "ada:key"}


def test_records_of_the_past_load_as_what_they_were():
    new = {
        *("config_type", "topology", "slices", "reservation", "run_duration_s", "valid_until", "valid_for_s"),
        *("boot_disk_gib", "tags", "labels", "metadata", "startup_script"),
    }
    old = {key: value for key, value in to_data(a_spec()).items() if key not in new}
    assert from_data(SliceSpec, old) == a_spec()
    full = spec_of(slices=2, network_tag=("t",), label={"a": "b"}, valid_for="1m", boot_disk=200)
    assert from_data(SliceSpec, to_data(full)) == full


def test_a_slice_is_not_asked_for_again_when_its_time_is_over():
    def why(spec: SliceSpec, now: float, came_up_at: float | None = None) -> str:
        return spent(spec, requested_at=NOW, came_up_at=came_up_at, now=now)

    until = a_spec(valid_until=NOW + 100)
    assert why(until, NOW + 99) == ""
    assert "has passed" in why(until, NOW + 100)
    assert "has passed" in why(until, NOW + 100, came_up_at=NOW + 1)
    waiting = a_spec(valid_for_s=3600.0)
    assert why(waiting, NOW + 3599) == ""
    assert "within --valid-for 1h" in why(waiting, NOW + 3600)
    assert why(waiting, NOW + 9999, came_up_at=NOW + 60) == ""
    flexible = a_spec(tier=Tier.FLEX_START, run_duration_s=4 * 3600.0)
    assert why(flexible, NOW + 99999) == ""
    assert why(flexible, NOW + 4 * 3600 - RUN_END_SLACK_S - 1, came_up_at=NOW) == ""
    assert "of 4h is over" in why(flexible, NOW + 4 * 3600 - RUN_END_SLACK_S, came_up_at=NOW)


V6E_GRANTS = tuple(Grant(zone, Tier.SPOT, "v6e", 64) for zone in ("us-east1-d", "europe-west4-a"))


def zones_of(accelerator, grants=(), **said):
    return tuple(spec.zone for spec in resolved(accelerator, grants, **said))


def test_every_zone_that_is_named_is_a_candidate_once_and_in_order():
    named = ("us-east5-b", "us-east1-d", "us-east5-b")
    assert zones_of("v6e-8", zone=named) == ("us-east5-b", "us-east1-d")


def test_auto_means_the_zones_of_the_grants_and_with_pay_all_that_have_the_type():
    assert zones_of("v6e-8", V6E_GRANTS, zone=("auto",)) == ("europe-west4-a", "us-east1-d")
    everywhere = zones_of("v6e-8", V6E_GRANTS, zone=("auto",), pay=True)
    assert set(everywhere) > {"europe-west4-a", "us-east1-d"}


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"zone": ("auto", "us-east1-d")}, "auto stands for every zone"),
        ({"zone": ("auto",)}, "no grant covers spot v6e-8 in any zone"),
        ({"zone": ("us-east1-d", "us-central2-b")}, "us-central2-b"),
    ],
)
def test_zones_that_cannot_be_are_refused(said, message):
    with pytest.raises(UsageError, match=message):
        zones_of("v6e-8", **said)


ZONE_7X = ("us-central1-c",)


def test_tpu7x_is_made_by_compute_engine_with_machine_type_topology_and_image_family():
    spec = spec_of("tpu7x-16", zone=ZONE_7X)
    assert (spec.api, spec.machine_type, spec.topology, spec.hosts) == (
        Api.COMPUTE,
        "tpu7x-standard-4t",
        "2x2x2",
        2,
    )
    assert spec.runtime_version == "ubuntu-accel-2404-amd64-tpu-tpu7x"
    assert (spec.queued, spec.config_type) == (False, None)
    assert spec_of("tpu7x", topology="4x4x12", zone=ZONE_7X).accelerator_type == "tpu7x-384"
    one = spec_of("tpu7x-8", zone=ZONE_7X, runtime_version="ubuntu-accel-2404-amd64-tpu-tpu7x-v20260716")
    assert (one.topology, one.hosts) == ("2x2x1", 1)
    assert one.runtime_version.endswith("-v20260716")


def test_an_api_that_is_not_the_usual_one_is_asked_for():
    by_api = spec_of("tpu7x-16", zone=ZONE_7X, api=Api.TPU)
    assert (by_api.api, by_api.machine_type, by_api.topology) == (Api.TPU, "", None)
    assert (by_api.runtime_version, by_api.queued) == ("v2-alpha-tpu7-ubuntu2404", True)
    doubt = api_doubt(by_api, CATALOG.get("tpu7x-16"))
    assert "is not documented" in doubt
    instances = spec_of("v6e-16", zone=("us-east5-a",), api=Api.COMPUTE)
    assert (instances.api, instances.machine_type, instances.topology) == (
        Api.COMPUTE,
        "ct6e-standard-4t",
        "4x4",
    )
    assert spec_of("v6e-16", zone=("us-east5-a",)).api is Api.TPU
    assert api_doubt(instances, CATALOG.get("v6e-16")) == ""


@pytest.mark.parametrize(("accelerator", "api"), [("v4-8", Api.COMPUTE), ("tpu7x-32", Api.TPU)])
def test_an_api_that_does_not_make_a_type_is_refused(accelerator, api):
    error = refusal(accelerator, api=api, zone=("us-central1-c",))
    assert "does not come through" in error.message
    assert error.hint == "leave out --api"


@pytest.mark.parametrize(
    ("said", "flag"),
    [
        ({"queued": True}, "--queued"),
        ({"queued": False}, "--direct"),
        ({"tier": Tier.PREEMPTIBLE}, "--preemptible"),
        ({"valid_until": "2027-01-15T08:01Z"}, "--valid-until"),
        ({"valid_for": "6h"}, "--valid-for"),
        ({"slices": 2}, "--slices"),
        ({"race": True}, "--race"),
    ],
)
def test_what_compute_engine_does_not_have_is_refused_with_a_reason(said, flag):
    error = refusal("tpu7x-16", zone=ZONE_7X, **said)
    assert f"{flag} is not for TPUs of Compute Engine" in error.message
    assert error.hint == NOT_OF_COMPUTE[flag][1]


@pytest.mark.parametrize("tier", [Tier.SPOT, Tier.ON_DEMAND, Tier.FLEX_START])
def test_what_compute_engine_makes_is_never_asked_of_the_queues_of_the_tpu_api(tier):
    assert not spec_of("tpu7x-16", zone=ZONE_7X, tier=tier, run_duration="4h").queued


def test_any_tier_of_compute_engine_may_have_a_run_duration():
    assert spec_of("tpu7x-16", zone=ZONE_7X, run_duration="30d").run_duration_s == 30 * 86_400
    assert "120 days" in refusal("tpu7x-16", zone=ZONE_7X, run_duration="121d").message
    assert spec_of("tpu7x-16", zone=ZONE_7X, tier=Tier.FLEX_START, run_duration="4h").tier is Tier.FLEX_START


def test_a_grant_of_the_tpu_api_gives_compute_engine_neither_tier_nor_zone():
    grant = Grant("us-east1-d", Tier.SPOT, "v6e", 64)
    assert spec_of("v6e-8", (grant,), tier=None).zone == "us-east1-d"
    error = refusal("v6e-8", api=Api.COMPUTE, tier=None)
    assert "no tier" in error.message
