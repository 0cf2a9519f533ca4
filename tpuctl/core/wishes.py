"""What a user wants, however it was said: the flags of `up` and `run` and the keys of a fleet file become the
same wishes, and one function makes a spec of each.

The fields below are the registry: flags take their help from it, a fleet file its keys, types and schema.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tpuctl.core.entry import render_argv
from tpuctl.core.grants import Grant, granted, same_pool
from tpuctl.core.model import Tier
from tpuctl.core.naming import check_zone_name, parse_secret, parse_var
from tpuctl.core.records import Policy, SliceSpec
from tpuctl.core.settings import Config
from tpuctl.core.topology import AcceleratorType, Catalog
from tpuctl.errors import UsageError

ABOUT = "about"
"""Key of a field's metadata under which its `About` is kept."""


@dataclass(frozen=True)
class About:
    """What flag and key say of themselves. `flags` are the options that mean the field, if it is not
    `--its-name`; `text` takes numbers and truth values as they are written; `example` is for documentation."""

    help: str
    flags: tuple[str, ...] = ()
    text: bool = False
    minimum: float | None = None
    example: Any = None


def _wish(
    default: Any,
    help_text: str,
    *,
    flags: tuple[str, ...] = (),
    text: bool = False,
    minimum: float | None = None,
    example: Any = None,
) -> Any:
    about = About(help_text, flags, text, minimum, example)
    if isinstance(default, dict):
        return field(default_factory=dict, metadata={ABOUT: about})
    return field(default=default, metadata={ABOUT: about})


@dataclass(frozen=True)
class SliceWish:
    """A slice as asked for; None and empty mean: the setting, else what the grants or the tables make plain."""

    accelerator: str | None = _wish(
        None, "Accelerator type, such as v4-32.", flags=("ACCELERATOR",), example="v4-32"
    )
    zone: tuple[str, ...] = _wish(
        (), "Where; repeat it to name more, in order of preference.", example="us-central2-b"
    )
    tier: Tier | None = _wish(  # noqa: RUF009 - makes a field
        None,
        "How the capacity is paid for.",
        flags=("--spot", "--on-demand", "--preemptible", "--reserved"),
        example="spot",
    )
    pay: bool = _wish(False, "Agree to pay for what no grant covers.")
    queued: bool | None = _wish(
        None,
        "Wait in the queue for capacity, or ask for the node directly.",
        flags=("--queued", "--direct"),
    )
    runtime_version: str | None = _wish(None, "TPU VM software; default by type.")


@dataclass(frozen=True)
class PolicyWish:
    """When a run is started again, and how it is stopped. `grace` is in seconds."""

    max_failures: int = _wish(Policy.max_failures, "Restarts after failures of the program.", minimum=0)
    max_preemptions: int = _wish(Policy.max_preemptions, "Restarts after preemptions.", minimum=0)
    grace: float = _wish(Policy.grace_s, "Between TERM and KILL at a stop.", minimum=0)

    def policy(self) -> Policy:
        return Policy(max_failures=self.max_failures, max_preemptions=self.max_preemptions, grace_s=self.grace)


@dataclass(frozen=True)
class RunWish:
    """A program on the workers of a slice, as asked for. One of `script`, `module` and `command` is given."""

    on: str | None = _wish(None, "The slice.", example="big")
    script: str | None = _wish(None, "A script, run by Python.", flags=("SCRIPT",), example="train.py")
    module: str | None = _wish(None, "Run a module.", flags=("-m",))
    command: tuple[str, ...] = _wish((), "Any command, word by word.", flags=("COMMAND",), text=True)
    args: tuple[str, ...] = _wish(
        (), "Arguments of the script or module.", flags=("ARGS",), text=True, example=["--lr", 0.1]
    )
    worker: str | None = _wish(
        None, "Only these workers, such as 0 or 0-3,7.", flags=("--worker", "--all-workers"), text=True
    )
    alone: bool = _wish(False, "With --worker: yes, without the other workers.")
    var: Mapping[str, str] = _wish({}, "Variable for the program; repeatable.", text=True)
    secret: Mapping[str, str] = _wish({}, "Secret from env:VAR or file:PATH; repeatable.")
    env: str | None = _wish(None, "Pinned environment.")
    checkpoint_dir: str | None = _wish(None, "gs:// place for checkpoints.")
    no_checkpoint: bool = _wish(False, "Restarts begin from scratch, and that is fine.")
    policy: PolicyWish = field(
        default_factory=PolicyWish, metadata={ABOUT: About("How often it is started again.")}
    )


def check_run_wish(wish: RunWish) -> tuple[str, ...]:
    """What can be refused of a run without knowing its slice; returns the argument vector.

    Raises UsageError, with the key it is about in its details.
    """
    if wish.worker is not None and not wish.alone:
        raise _about(
            "worker",
            "--worker leaves out workers, which hang a program that waits for them",
            "add --alone if the program does not",
        )
    for name, value in wish.var.items():
        _told(parse_var, "var", f"{name}={value}")
    for name, reference in wish.secret.items():
        _told(parse_secret, "secret", f"{name}={reference}")
    return render_argv(script=wish.script, module=wish.module, command=wish.command, arguments=list(wish.args))


@cache
def about(wish: Any) -> Mapping[str, About]:
    """The registry of one kind of wish, by field, in order."""
    return {item.name: item.metadata[ABOUT] for item in dataclasses.fields(wish)}


def help_of(wish: Any, name: str) -> str:
    """The one help text of a field."""
    return about(wish)[name].help


def tier_of_flags(**given: bool) -> Tier | None:
    """The tier whose flag was given, None for none; keywords are tiers with `_`. Raises UsageError for two."""
    chosen = [tier for tier in Tier if given.get(tier.replace("-", "_"))]
    if len(chosen) > 1:
        names = " and ".join(f"--{tier}" for tier in chosen)
        raise UsageError(f"{names} exclude each other", hint=f"keep --{chosen[0]}")
    return chosen[0] if chosen else None


def slice_spec(wish: SliceWish, config: Config, catalog: Catalog, grants: Sequence[Grant]) -> SliceSpec:
    """The slice that was asked for, checked against the tables. Raises UsageError, with the key it is about in
    its details."""
    name = wish.accelerator or config.accelerator
    if name is None:
        raise _about("accelerator", "no accelerator type", "tpuctl up v4-32 --spot; `tpuctl types` lists them")
    found = _told(catalog.get, "accelerator", name)
    usable = granted(grants, found.generation, found.chips)
    tier = _choose_tier(wish, config, usable)
    return SliceSpec(
        accelerator_type=found.name,
        zone=_choose_zone(wish, config, catalog, found, tier, usable),
        tier=tier,
        runtime_version=wish.runtime_version or config.runtime_version or found.runtime_version,
        hosts=found.hosts,
        chips=found.chips,
        queued=True if wish.queued is None else wish.queued,
        external_ips=config.external_ips,
        login_user=config.login_user,
        network=config.network,
        subnetwork=config.subnetwork,
        service_account=config.service_account,
    )


def _choose_tier(wish: SliceWish, config: Config, usable: Sequence[Grant]) -> Tier:
    """The one tier that was asked for, else the configured one, else the only one that is granted.

    There is no default beyond that: money is opt-in.
    """
    asked = wish.tier or config.tier
    if asked is not None:
        return asked
    tiers = {grant.tier for grant in usable}
    if len(tiers) == 1:
        return tiers.pop()
    raise _about(
        "tier",
        "no tier: say how the capacity is paid for",
        "--spot, --on-demand, --preemptible or --reserved; or settings: {tier: spot} in tpuctl.yaml",
    )


def _choose_zone(
    wish: SliceWish,
    config: Config,
    catalog: Catalog,
    found: AcceleratorType,
    tier: Tier,
    usable: Sequence[Grant],
) -> str:
    asked = list(wish.zone or config.zone)
    covering = sorted({grant.zone for grant in usable if same_pool(grant.tier, tier)})
    if not asked and len(covering) == 1:
        asked = covering
    if not asked and len(found.zones) == 1:
        asked = [found.zones[0]]
    if not asked:
        raise _about(
            "zone",
            f"no zone for {found.name}",
            f"--zone {found.zones[0]}; also {', '.join(found.zones[1:])}",
        )
    for zone in asked:
        _told(lambda zone: catalog.check_zone(found, check_zone_name(zone)), "zone", zone)
    if len(asked) > 1 and wish.zone:
        raise _about("zone", "more than one --zone is not supported yet", f"--zone {asked[0]}")
    return asked[0]


def _about(key: str, message: str, hint: str) -> UsageError:
    return UsageError(message, hint=hint, details={"key": key})


def _told(check: Any, key: str, value: Any) -> Any:
    """What `check` says of `value`; its UsageError also tells which key it is about."""
    try:
        return check(value)
    except UsageError as error:
        details = {**error.details, "key": key}
        raise UsageError(error.message, hint=error.hint, details=details) from error
