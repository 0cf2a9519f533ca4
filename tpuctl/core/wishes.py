"""What a user wants, however it was said: the flags of `up` and `run` and the keys of a fleet file become the
same wishes, and one function makes a spec of each.

The fields below are the registry: flags take their help from it, a fleet file its keys, types and schema.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tpuctl.core.acquisition import SliceChoice, settle
from tpuctl.core.ask import Ask, told
from tpuctl.core.durations import parse_duration, parse_moment
from tpuctl.core.entry import render_argv
from tpuctl.core.grants import Grant
from tpuctl.core.model import Tier
from tpuctl.core.naming import parse_secret, parse_var
from tpuctl.core.records import Policy, SliceSpec
from tpuctl.core.settings import Config
from tpuctl.core.topology import Catalog
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
        (),
        "Where; repeat it to hunt through several, in order; `auto` for all that is allowed.",
        example="us-central2-b",
    )
    tier: Tier | None = _wish(  # noqa: RUF009 - makes a field
        None,
        "How the capacity is paid for.",
        flags=("--spot", "--on-demand", "--preemptible", "--reserved", "--flex-start"),
        example="spot",
    )
    pay: bool = _wish(False, "Agree to pay for what no grant covers.")
    queued: bool | None = _wish(
        None,
        "Wait in the queue for capacity, or ask for the node directly.",
        flags=("--queued", "--direct"),
    )
    runtime_version: str | None = _wish(None, "TPU VM software; default by type.")
    reservation: str | None = _wish(None, "With --reserved: of this reservation.")
    run_duration: str | None = _wish(None, "With --flex-start: how long; at most 7d.", example="4h")
    valid_until: str | None = _wish(
        None, "Create nothing after this time (UTC unless it says more).", example="2026-12-24T18:00Z"
    )
    valid_for: str | None = _wish(None, "Let each request wait at most this long.", example="6h")
    topology: str | None = _wish(
        None, "A shape, with a generation as the accelerator, such as v4.", example="4x4x12"
    )
    slices: int | None = _wish(None, "Several slices in one request: multislice.", minimum=1, example=2)
    network: str | None = _wish(None, "VPC network.")
    subnetwork: str | None = _wish(None, "Subnetwork of the region.")
    internal_ips: bool = _wish(False, "No external addresses.")
    service_account: str | None = _wish(None, "Whose permissions programs on the hosts have.")
    tag: tuple[str, ...] = _wish((), "Network tag; repeatable.")
    label: Mapping[str, str] = _wish({}, "Label; repeatable.", text=True)
    metadata: Mapping[str, str] = _wish({}, "Entry of the metadata server; repeatable.", text=True)
    boot_disk: int | None = _wish(None, "Size of the boot disk in GiB.", example=200)
    startup_script: str | None = _wish(None, "File that runs as root at every boot of every host.")


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


def slice_spec(
    wish: SliceWish,
    config: Config,
    catalog: Catalog,
    grants: Sequence[Grant],
    *,
    now: float,
    script: bytes | None = None,
) -> SliceSpec:
    """The spec of `slice_choice`, in the first of its zones."""
    return slice_choice(wish, config, catalog, grants, now=now, script=script).spec


def slice_choice(
    wish: SliceWish,
    config: Config,
    catalog: Catalog,
    grants: Sequence[Grant],
    *,
    now: float,
    script: bytes | None = None,
) -> SliceChoice:
    """The slice that was asked for, checked against the tables. `script` is the content of the startup script.

    Raises UsageError, with the key it is about in its details.
    """
    name = wish.accelerator or config.accelerator
    if name is None:
        raise _about("accelerator", "no accelerator type", "tpuctl up v4-32 --spot; `tpuctl types` lists them")
    return settle(_ask(wish, config, script), name, catalog, grants, now)


def _ask(wish: SliceWish, config: Config, script: bytes | None) -> Ask:
    """The wish in the units of the core, with the settings where it says nothing."""

    def parsed(parse: Callable[[str, str], float], key: str) -> float | None:
        word, flag = getattr(wish, key), f"--{key.replace('_', '-')}"
        return None if word is None else told(flag, lambda: parse(word, flag))

    return Ask(
        tier=wish.tier or config.tier,
        pay=wish.pay,
        zones=wish.zone,
        default_zones=config.zone,
        queued=wish.queued,
        runtime_version=wish.runtime_version or config.runtime_version,
        reservation=wish.reservation,
        run_duration_s=parsed(parse_duration, "run_duration"),
        valid_until=parsed(parse_moment, "valid_until"),
        valid_for_s=parsed(parse_duration, "valid_for"),
        topology=wish.topology,
        slices=wish.slices,
        network=wish.network or config.network,
        subnetwork=wish.subnetwork or config.subnetwork,
        external_ips=config.external_ips and not wish.internal_ips,
        login_user=config.login_user,
        service_account=wish.service_account or config.service_account,
        tags=wish.tag,
        labels=wish.label,
        metadata=wish.metadata,
        boot_disk_gib=wish.boot_disk,
        startup_script=script,
    )


def _about(key: str, message: str, hint: str) -> UsageError:
    return UsageError(message, hint=hint, details={"key": key})


def _told(check: Any, key: str, value: Any) -> Any:
    """What `check` says of `value`; its UsageError also tells which key it is about."""
    try:
        return check(value)
    except UsageError as error:
        details = {**error.details, "key": key}
        raise UsageError(error.message, hint=error.hint, details=details) from error
