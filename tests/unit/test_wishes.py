from __future__ import annotations

from pathlib import Path

import pytest
import typer

from tpuctl.cli.app import COMMANDS, load_command
from tpuctl.config.schema import registry
from tpuctl.config.settings import Config, Layer, resolve
from tpuctl.errors import UsageError
from tpuctl.model.cloud import Tier
from tpuctl.model.data import load_accelerators
from tpuctl.model.records import Limits
from tpuctl.money.grants import Grant
from tpuctl.slices.options import (
    PolicyWish,
    RunWish,
    SliceWish,
    check_run_wish,
    limits_of,
    slice_choice,
    tier_of_flags,
)

HOW = {"--no-wait", "--timeout", "--dry-run", "--json", "--quiet", "--help"}
"""Options that say how the command works, not what is wanted."""


def settings(**values: object) -> Config:
    return resolve([Layer("test", values)], Path("/nowhere"))


def spec_of(wish: SliceWish, grants: tuple[Grant, ...] = (), **values: object):
    return slice_choice(wish, settings(**values), load_accelerators(), grants, now=1_800_000_000.0).spec


def options_of(command: str) -> set[str]:
    """Every option of a command, in its long form where it has one."""
    entry = next(entry for entry in COMMANDS if entry.name == command)
    options = [p for p in load_command(entry).params if isinstance(p, typer.core.TyperOption)]
    spelt = [[*option.opts, *option.secondary_opts] for option in options]
    return {word for words in spelt for word in words if word.startswith("--") or len(words) == 1}


def flags_of(*wishes: type) -> set[str]:
    """Every option that the fields of these wishes have."""
    return {
        flag
        for wish in wishes
        for name, item in registry(wish).items()
        for flag in (item.flags or (f"--{name.replace('_', '-')}",))
        if flag.startswith("-")
    }


def test_flags_of_up_are_the_fields_of_a_slice_wish():
    assert options_of("up") - HOW == flags_of(SliceWish)


def test_flags_of_run_are_the_fields_of_a_run_wish():
    wanted = flags_of(RunWish, PolicyWish) - {"--policy"}
    own_slice = {"--up", "--keep"} | flags_of(SliceWish)
    assert options_of("run") - HOW - own_slice - {"--name", "--detach"} == wanted


def test_settings_stand_in_for_what_was_not_said():
    spec = spec_of(SliceWish(), accelerator="v4-16", tier="spot", zone="us-central2-b", runtime_version="x")
    assert (spec.accelerator_type, spec.tier, spec.zone, spec.runtime_version) == (
        "v4-16",
        Tier.SPOT,
        "us-central2-b",
        "x",
    )
    assert (spec.hosts, spec.chips, spec.queued) == (2, 8, True)
    said = SliceWish(accelerator="v4-8", tier=Tier.RESERVED, queued=False, runtime_version="y")
    spec = spec_of(said, accelerator="v4-16", tier="spot", runtime_version="x")
    assert (spec.accelerator_type, spec.tier, spec.queued, spec.runtime_version) == (
        "v4-8",
        Tier.RESERVED,
        False,
        "y",
    )


def test_what_was_said_wins_over_the_settings_and_durations_are_read():
    said = SliceWish(accelerator="v4-16", network="mine", internal_ips=True, valid_for="90m")
    spec = spec_of(
        said, tier="spot", network="other", subnetwork="sub", service_account="a@p.iam.gserviceaccount.com"
    )
    assert (spec.network, spec.subnetwork, spec.service_account) == (
        "mine",
        "sub",
        "a@p.iam.gserviceaccount.com",
    )
    assert (spec.external_ips, spec.valid_for_s) == (False, 5400.0)
    assert spec_of(SliceWish(accelerator="v4-16"), tier="spot", external_ips=False).external_ips is False


def test_the_only_grant_that_is_large_enough_says_tier_and_zone():
    grants = (
        Grant("europe-west4-b", Tier.SPOT, "v5e", 64),
        Grant("us-central1-a", Tier.ON_DEMAND, "v5e", 4),
    )
    spec = spec_of(SliceWish(accelerator="v5e-16"), grants)
    assert (spec.tier, spec.zone) == (Tier.SPOT, "europe-west4-b")


@pytest.mark.parametrize(
    ("wish", "key", "said"),
    [
        (SliceWish(), "accelerator", "no accelerator type"),
        (SliceWish(accelerator="v4-33"), "accelerator", "v4-33"),
        (SliceWish(accelerator="v4-8"), "tier", "no tier"),
        (SliceWish(accelerator="v6e-8", tier=Tier.SPOT), "zone", "no zone for v6e-8"),
        (SliceWish(accelerator="v4-8", tier=Tier.SPOT, zone=("us-east1-d",)), "zone", "us-east1-d"),
        (SliceWish(accelerator="v4-8", tier=Tier.SPOT, zone=("Nowhere",)), "zone", "Nowhere"),
        (SliceWish(accelerator="v4-8", tier=Tier.SPOT, valid_for="soon"), "valid_for", "soon"),
        (SliceWish(accelerator="v4-8", tier=Tier.SPOT, valid_until="2026-01-01"), "valid_until", "has passed"),
        (SliceWish(accelerator="v4-8", tier=Tier.FLEX_START), "tier", "--flex-start needs"),
    ],
)
def test_what_cannot_be_names_its_key(wish, key, said):
    with pytest.raises(UsageError) as caught:
        spec_of(wish)
    assert caught.value.details["key"] == key
    assert said in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("wish", "key", "said"),
    [
        (SliceWish(ttl="soon"), "ttl", "--ttl 'soon' is not a duration"),
        (SliceWish(ttl="10m"), "ttl", "--ttl 10m is too short: the hosts are warned"),
        (SliceWish(stop_when_idle="5m"), "stop_when_idle", "--stop-when-idle 5m"),
    ],
)
def test_limits_too_short_for_a_warning_are_refused(wish, key, said):
    with pytest.raises(UsageError) as caught:
        limits_of(wish)
    assert caught.value.details["key"] == key
    assert said in caught.value.message


def test_limits_are_spans():
    assert limits_of(SliceWish()) == Limits()
    assert limits_of(SliceWish(ttl="8h", stop_when_idle="1h30m")) == Limits(ttl_s=28_800.0, idle_s=5400.0)


def test_one_tier_flag_is_a_tier_and_two_are_refused():
    assert tier_of_flags(spot=False, on_demand=True) is Tier.ON_DEMAND
    assert tier_of_flags(spot=False) is None
    with pytest.raises(UsageError, match="--spot and --reserved exclude each other"):
        tier_of_flags(spot=True, reserved=True)


@pytest.mark.parametrize(
    ("wish", "argv"),
    [
        (RunWish(script="train.py", args=("--lr", "1")), ("python3", "train.py", "--lr", "1")),
        (RunWish(module="pkg.train"), ("python3", "-m", "pkg.train")),
        (RunWish(command=("bash", "x.sh")), ("bash", "x.sh")),
    ],
)
def test_a_run_is_a_script_a_module_or_a_command(wish, argv):
    assert check_run_wish(wish) == argv


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (RunWish(), "say what to run"),
        (RunWish(script="a.py", module="b"), "say what to run"),
        (RunWish(script="a.py", worker="0"), "--worker leaves out workers"),
        (RunWish(script="a.py", var={"1A": "b"}), "1A"),
        (RunWish(script="a.py", secret={"TOKEN": "plain"}), "reference"),
    ],
)
def test_a_run_that_cannot_be_is_refused(wish, said):
    with pytest.raises(UsageError, match=said):
        check_run_wish(wish)
