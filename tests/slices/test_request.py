from __future__ import annotations

from pathlib import Path

import pytest
import typer

from tpuctl.cli.app import load_command
from tpuctl.cli.registry import COMMANDS
from tpuctl.config.settings import Config, Layer, resolve
from tpuctl.errors import UsageError
from tpuctl.lib.options import flags_of as flags_of_option
from tpuctl.lib.options import registry
from tpuctl.model.cloud import Tier
from tpuctl.model.records import LifetimeLimits
from tpuctl.model.requests import ClusterRequest
from tpuctl.model.run_spec import PolicyRequest, RunRequest
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.model.slice_spec import SliceRequest
from tpuctl.money.grants import Grant
from tpuctl.runs.rules import check_run
from tpuctl.slices.resolve import resolve_limits, resolve_request

HOW = {"--no-wait", "--timeout", "--dry-run", "--json", "--quiet", "--help"}
"""Options that say how the command works, not what is wanted."""


def settings(**values: object) -> Config:
    return resolve([Layer("test", values)], Path("/nowhere"))


def spec_of(wanted: SliceRequest, grants: tuple[Grant, ...] = (), **values: object):
    config = settings(**values)
    return resolve_request(wanted, config, load_accelerators(), grants, now=1_800_000_000.0)[0]


def options_of(command: str) -> set[str]:
    """Every option of a command, in its long form where it has one."""
    entry = next(entry for entry in COMMANDS if entry.name == command)
    options = [p for p in load_command(entry).params if isinstance(p, typer.core.TyperOption)]
    spelt = [[*option.opts, *option.secondary_opts] for option in options]
    return {word for words in spelt for word in words if word.startswith("--") or len(words) == 1}


def flags_of(*requests: type) -> set[str]:
    """Every flag that the fields of these requests have."""
    return {
        flag.name
        for wanted in requests
        for name, item in registry(wanted).items()
        for flag in flags_of_option(name, item)
        if flag.name.startswith("-")
    }


def test_flags_of_up_are_the_fields_of_a_request():
    assert options_of("up") - HOW == flags_of(SliceRequest)


ONE_OR_MANY = {"--name", "--detach", "--smoke", "--matrix", "--parallel", "--yes"}
"""How a run is started, or a grid of them."""


def test_flags_of_run_are_the_fields_of_a_run_request():
    wanted = flags_of(RunRequest, PolicyRequest) - {"--policy"}
    own_slice = {"--up", "--keep"} | flags_of(SliceRequest, ClusterRequest) - wanted
    assert options_of("run") - HOW - own_slice - ONE_OR_MANY == wanted


def test_settings_stand_in_for_what_was_not_said():
    spec = spec_of(SliceRequest(), accelerator="v4-16", tier="spot", zone="us-central2-b", runtime_version="x")
    assert (spec.accelerator_type, spec.tier, spec.zone, spec.runtime_version) == (
        "v4-16",
        Tier.SPOT,
        "us-central2-b",
        "x",
    )
    assert (spec.hosts, spec.chips, spec.queued) == (2, 8, True)
    said = SliceRequest(accelerator="v4-8", tier=Tier.RESERVED, queued=False, runtime_version="y")
    spec = spec_of(said, accelerator="v4-16", tier="spot", runtime_version="x")
    assert (spec.accelerator_type, spec.tier, spec.queued, spec.runtime_version) == (
        "v4-8",
        Tier.RESERVED,
        False,
        "y",
    )


def test_what_was_said_wins_over_the_settings_and_durations_are_read():
    said = SliceRequest(accelerator="v4-16", network="mine", internal_ips=True, valid_for="90m")
    spec = spec_of(
        said, tier="spot", network="other", subnetwork="sub", service_account="a@p.iam.gserviceaccount.com"
    )
    assert (spec.network, spec.subnetwork, spec.service_account) == (
        "mine",
        "sub",
        "a@p.iam.gserviceaccount.com",
    )
    assert (spec.external_ips, spec.valid_for_s) == (False, 5400.0)
    assert spec_of(SliceRequest(accelerator="v4-16"), tier="spot", external_ips=False).external_ips is False


def test_the_only_grant_that_is_large_enough_says_tier_and_zone():
    grants = (
        Grant("europe-west4-b", Tier.SPOT, "v5e", 64),
        Grant("us-central1-a", Tier.ON_DEMAND, "v5e", 4),
    )
    spec = spec_of(SliceRequest(accelerator="v5e-16"), grants)
    assert (spec.tier, spec.zone) == (Tier.SPOT, "europe-west4-b")


@pytest.mark.parametrize(
    ("wanted", "key", "said"),
    [
        (SliceRequest(), "accelerator", "no accelerator type"),
        (SliceRequest(accelerator="v4-33"), "accelerator", "v4-33"),
        (SliceRequest(accelerator="v4-8"), "tier", "no tier"),
        (SliceRequest(accelerator="v6e-8", tier=Tier.SPOT), "zone", "no zone for v6e-8"),
        (SliceRequest(accelerator="v4-8", tier=Tier.SPOT, zone=("us-east1-d",)), "zone", "us-east1-d"),
        (SliceRequest(accelerator="v4-8", tier=Tier.SPOT, zone=("Nowhere",)), "zone", "Nowhere"),
        (SliceRequest(accelerator="v4-8", tier=Tier.SPOT, valid_for="soon"), "valid_for", "soon"),
        (
            SliceRequest(accelerator="v4-8", tier=Tier.SPOT, valid_until="2026-01-01"),
            "valid_until",
            "has passed",
        ),
        (SliceRequest(accelerator="v4-8", tier=Tier.FLEX_START), "tier", "--flex-start needs"),
    ],
)
def test_what_cannot_be_names_its_key(wanted, key, said):
    with pytest.raises(UsageError) as caught:
        spec_of(wanted)
    assert caught.value.details["key"] == key
    assert said in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("wanted", "key", "said"),
    [
        (SliceRequest(ttl="soon"), "ttl", "--ttl 'soon' is not a duration"),
        (SliceRequest(ttl="10m"), "ttl", "--ttl 10m is too short: the hosts are warned"),
        (SliceRequest(stop_when_idle="5m"), "stop_when_idle", "--stop-when-idle 5m"),
    ],
)
def test_limits_too_short_for_a_warning_are_refused(wanted, key, said):
    with pytest.raises(UsageError) as caught:
        resolve_limits(wanted)
    assert caught.value.details["key"] == key
    assert said in caught.value.message


def test_limits_are_spans():
    assert resolve_limits(SliceRequest()) == LifetimeLimits()
    assert resolve_limits(SliceRequest(ttl="8h", stop_when_idle="1h30m")) == LifetimeLimits(
        ttl_s=28_800.0, idle_s=5400.0
    )


@pytest.mark.parametrize(
    ("wanted", "argv"),
    [
        (RunRequest(script="train.py", args=("--lr", "1")), ("python3", "train.py", "--lr", "1")),
        (RunRequest(module="pkg.train"), ("python3", "-m", "pkg.train")),
        (RunRequest(command=("bash", "x.sh")), ("bash", "x.sh")),
    ],
)
def test_a_run_is_a_script_a_module_or_a_command(wanted, argv):
    assert check_run(wanted) == argv


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (RunRequest(), "say what to run"),
        (RunRequest(script="a.py", module="b"), "say what to run"),
        (RunRequest(script="a.py", worker="0"), "--worker leaves out workers"),
        (RunRequest(script="a.py", var={"1A": "b"}), "1A"),
        (RunRequest(script="a.py", secret={"TOKEN": "plain"}), "reference"),
    ],
)
def test_a_run_that_cannot_be_is_refused(wanted, said):
    with pytest.raises(UsageError, match=said):
        check_run(wanted)
