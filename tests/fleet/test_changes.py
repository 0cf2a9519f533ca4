"""A change of any key of a fleet file is seen, and told: done in place, or only by something new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import a_run, a_slice
from tpuctl.config.settings import Layer, resolve
from tpuctl.envs.pinned import PinnedEnvironment
from tpuctl.envs.spec import EnvironmentSpec
from tpuctl.fleet.plan import Change, FleetChange, WantedFleet, WantedRun, plan_fleet
from tpuctl.lib.options import registry
from tpuctl.model.attempts import CodeState
from tpuctl.model.cloud import Api, Tier
from tpuctl.model.disks import DiskMode
from tpuctl.model.receipt import DataDigest, Receipt
from tpuctl.model.records import RunRecord, SliceRecord
from tpuctl.model.refs import DiskRef, MountRef
from tpuctl.model.requests import ApplyRequest
from tpuctl.model.run_spec import PolicyRequest, RunRequest
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.model.slice_spec import SliceRequest
from tpuctl.runs.submit import resolve_run
from tpuctl.slices.lifetime import replace_lifetime
from tpuctl.slices.resolve import WantedSlice, resolve_limits, resolve_request

NOW = 1_800_000_000.0
V5E: dict[str, Any] = {"accelerator": "v5litepod-16", "tier": Tier.SPOT, "zone": ("us-central1-a",)}
V4: dict[str, Any] = {"accelerator": "v4", "tier": Tier.SPOT, "zone": ("us-central2-b",)}
RESERVED = {**V5E, "tier": Tier.RESERVED}
FLEX = {"accelerator": "v6e-8", "tier": Tier.FLEX_START, "zone": ("us-east5-a",), "run_duration": "4h"}
SLICE_KEYS: dict[str, tuple[dict[str, Any], Any]] = {
    "accelerator": (V5E, "v5litepod-32"),
    "zone": (V5E, ("us-central1-a", "europe-west4-b")),
    "tier": (V5E, Tier.ON_DEMAND),
    "pay": (V5E, True),
    "queued": (V5E, False),
    "runtime_version": (V5E, "other"),
    "reservation": (RESERVED, "ours"),
    "run_duration": (FLEX, "5h"),
    "valid_until": (V5E, "2030-01-01"),
    "valid_for": (V5E, "6h"),
    "topology": ({**V4, "topology": "2x2x2"}, "2x2x4"),
    "slices": (V5E, 2),
    "network": (V5E, "mine"),
    "subnetwork": (V5E, "mine"),
    "internal_ips": (V5E, True),
    "service_account": (V5E, "a@p.iam.gserviceaccount.com"),
    "network_tag": (V5E, ("training",)),
    "label": (V5E, {"team": "vision"}),
    "metadata": (V5E, {"team": "vision"}),
    "description": (V5E, "other"),
    "race": ({**V5E, "zone": ("us-central1-a", "europe-west4-b")}, True),
    "boot_disk": (V5E, 200),
    "startup_script": (V5E, "boot.sh"),
    "disk": (V5E, ("data-g1:/mnt/data",)),
    "mount": (V5E, ("gs://lab-data:/mnt/data",)),
    "env": (V5E, "demo-cpu"),
    "api": ({"accelerator": "v6e-8", "tier": Tier.SPOT, "zone": ("us-east5-a",)}, Api.COMPUTE),
    "ttl": ({**V5E, "ttl": "8h"}, "9h"),
    "stop_when_idle": (V5E, "30m"),
}
IN_PLACE = {name for name, option in registry(SliceRequest).items() if option.in_place}
BASE_RUN: dict[str, Any] = {"on": "big", "script": "train.py", "no_checkpoint": True}
RUN_KEYS: dict[str, dict[str, Any]] = {
    "on": {"on": "other"},
    "script": {"script": "other.py"},
    "module": {"script": None, "module": "pkg.train"},
    "command": {"script": None, "command": ("bash", "x.sh")},
    "args": {"args": ("--lr", "1")},
    "worker": {"worker": "0", "alone": True},
    "alone": {"worker": "0-1", "alone": True},
    "var": {"var": {"SEED": "1"}},
    "secret": {"secret": {"T": "env:T"}},
    "env": {"env": "demo-cpu"},
    "allow_drift": {"allow_drift": ("clock",)},
    "allow_cpu": {"allow_cpu": True},
    "per": {"per": "chip"},
    "join_limit": {"join_limit": 600.0},
    "progress": {"progress": r"step (\d+)"},
    "stall": {"stall": "1h"},
    "first_step_limit": {"first_step_limit": "5h"},
    "check": {"check": "weights"},
    "on_stall": {"on_stall": "restart"},
    "debug": {"debug": ("hlo",)},
    "container": {"container": "us-docker.pkg.dev/p/r/image:1"},
    "pull": {"container": "us-docker.pkg.dev/p/r/image:1", "pull": "always"},
    "privileged": {"container": "us-docker.pkg.dev/p/r/image:1", "privileged": True},
    "on_nan": {"on_nan": "stop", "progress": r"loss (?P<loss>\S+)"},
    "group": {"group": "sweep-1"},
    "tag": {"tag": ("baseline",)},
    "data": {"data": ("gs://b/tokens",)},
    "synthetic": {"synthetic": True},
    "checkpoint_dir": {"no_checkpoint": False, "checkpoint_dir": "gs://b/x"},
    "no_checkpoint": {"no_checkpoint": False},
    "any_region": {"any_region": True},
    "chips": {"chips": "1"},
    "chip": {"chip": "2"},
    "unproven": {"unproven": True},
    "policy": {"policy": PolicyRequest(max_failures=5)},
}


def wanted_slice(name: str = "big", **keys: Any) -> WantedSlice:
    request = SliceRequest(**keys)
    script = b"#!/bin/sh\n" if request.startup_script else None
    config = resolve([Layer("test", {})], Path("/nowhere"))
    frozen = PinnedEnvironment(EnvironmentSpec(request.env, ("3.11",))) if request.env else None
    catalog = load_accelerators()
    specs = resolve_request(request, config, catalog, (), now=NOW, script=script)
    disks = tuple(DiskRef("data-g1", "/mnt/data", DiskMode.READ_ONLY) for _ in request.disk)
    mounts = tuple(MountRef("lab-data", "/mnt/data", "train") for _ in request.mount)
    env = frozen.ref if frozen is not None else None
    specs = tuple(
        replace(each, disks=disks, mounts=mounts, env=env) for each in specs
    )  # which the store alone can tell
    return WantedSlice(name, specs, request.pay, script, resolve_limits(request))


def recorded(item: WantedSlice) -> SliceRecord:
    """What `apply` writes down of a slice."""
    zones = item.zones if len(item.zones) > 1 else ()
    lifetime = replace_lifetime(None, item.limits, NOW)
    return a_slice(name=item.name, spec=item.spec, zones=zones, pay=item.pay, lifetime=lifetime, fleet="lab")


def wanted_run(bundle: str = "0" * 64, probe: str = "", **changes: Any) -> WantedRun:
    request = RunRequest(**{**BASE_RUN, **changes})
    config = resolve([Layer("test", {})], Path("/nowhere"))
    environment = (
        PinnedEnvironment(EnvironmentSpec(request.env, ("3.11",)), probe=probe) if request.env else None
    )
    data = tuple(Receipt(uri, "gcs", DataDigest("0" * 64, "listing"), 1, 1) for uri in request.data)
    spec = resolve_run(request, config, request.on or "", 4, ".", environment, data)
    return WantedRun("train", spec, bundle)


def submitted(item: WantedRun) -> RunRecord:
    """What `apply` writes down of a run."""
    return a_run(
        spec=item.spec,
        code=CodeState(bundle=item.bundle),
        fingerprint=item.fingerprint(item.spec.policy),
        fleet="lab",
        fleet_run="train",
    )


def change_of_slice(before: WantedSlice, after: WantedSlice, **how: Any) -> FleetChange:
    return plan_fleet(WantedFleet("lab", (after,), ()), [recorded(before)], [], "ada", ApplyRequest(**how))[0]


def change_of_run(before: WantedRun, after: WantedRun, **how: Any) -> FleetChange:
    slices = (wanted_slice(**V5E), wanted_slice("other", **V5E))
    wanted = WantedFleet("lab", slices, (after,))
    records = [recorded(item) for item in slices]
    return plan_fleet(wanted, records, [submitted(before)], "ada", ApplyRequest(**how))[2]


def test_every_key_has_a_change_below():
    assert set(SLICE_KEYS) == set(registry(SliceRequest))
    assert set(RUN_KEYS) | {"lint"} == set(registry(RunRequest))


def test_how_code_is_looked_at_before_does_not_make_it_another_run():
    assert change_of_run(wanted_run(), wanted_run(lint="strict")).change is Change.NONE


@pytest.mark.parametrize("key", SLICE_KEYS)
def test_a_change_of_any_key_of_a_slice_is_told_as_in_place_or_as_another_slice(key):
    base, value = SLICE_KEYS[key]
    before, after = wanted_slice(**base), wanted_slice(**{**base, key: value})
    assert change_of_slice(before, before).change is Change.NONE
    found = change_of_slice(before, after)
    assert found.differs
    if key in IN_PLACE:
        assert (found.change, found.differs) == (Change.UPDATE, (key,))
        return
    assert found.change is Change.CONFLICT
    assert "tpuctl apply --replace" in found.hint
    assert change_of_slice(before, after, replace=True).change is Change.REPLACE
    assert change_of_slice(after, before).change is Change.CONFLICT


@pytest.mark.parametrize("key", RUN_KEYS)
def test_a_change_of_any_key_of_a_run_is_told_as_in_place_or_as_another_run(key):
    before, after = wanted_run(), wanted_run(**RUN_KEYS[key])
    assert change_of_run(before, before).change is Change.NONE
    found = change_of_run(before, after)
    assert found.differs
    if key == "policy":
        assert (found.change, found.differs) == (Change.UPDATE, ("max_failures",))
        return
    assert found.change is Change.CONFLICT
    assert "tpuctl stop" in found.hint
    replaced = change_of_run(before, after, replace=True)
    assert (replaced.change, replaced.record) == (Change.REPLACE, submitted(before).id)


def test_what_differs_of_a_run_is_named():
    assert change_of_run(wanted_run(), wanted_run(bundle="1" * 64)).differs == ("code",)
    moved = change_of_run(wanted_run(), wanted_run(on="other"))
    assert moved.why == f"run {submitted(wanted_run()).id} is running on slice big, not on other"
    there = {"no_checkpoint": False, "checkpoint_dir": "gs://b/x"}
    elsewhere = {"no_checkpoint": False, "checkpoint_dir": "gs://b/y"}
    assert change_of_run(wanted_run(**there), wanted_run(**elsewhere)).differs == ("place of checkpoints",)
    pinned = wanted_run(env="demo-cpu", probe="old")
    assert change_of_run(pinned, wanted_run(env="demo-cpu", probe="another")).differs == (
        "content of the environment",
    )


def test_a_run_that_was_told_to_stop_is_no_reason_not_to_begin_elsewhere():
    wanted = WantedFleet("lab", (wanted_slice("other", **V5E),), (wanted_run(on="other"),))
    stopping = replace(submitted(wanted_run()), stop_asked=True)
    changes = plan_fleet(wanted, [recorded(wanted.slices[0])], [stopping], "ada", ApplyRequest())
    assert changes[1].change is Change.CREATE
