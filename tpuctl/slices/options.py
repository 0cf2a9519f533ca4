"""What a user wants, however it was said: the flags of `up` and `run` and the keys of a fleet file become the
same wishes, and one function makes a spec of each.

The fields below are the registry: flags take their help from it, a fleet file its keys, types and schema.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from tpuctl.config.schema import hints_of, key, registry
from tpuctl.config.settings import Config
from tpuctl.errors import UsageError
from tpuctl.lib.names import parse_secret, parse_var
from tpuctl.lib.text import WORKERS_HELP
from tpuctl.lib.time import parse_duration, parse_moment
from tpuctl.model.accelerators import Catalog
from tpuctl.model.cloud import Tier
from tpuctl.model.entrypoint import render_argv
from tpuctl.model.records import Limits, Policy
from tpuctl.money.grants import Grant
from tpuctl.slices.request import Ask, told

if TYPE_CHECKING:
    from tpuctl.slices.resolve import SliceChoice


@dataclass(frozen=True)
class SliceWish:
    """A slice as asked for; None and empty mean: the setting, else what the grants or the tables make plain."""

    accelerator: str | None = key(
        None, "Accelerator type, such as v4-32.", flags=("ACCELERATOR",), examples=("v4-32",)
    )
    zone: tuple[str, ...] = key(
        (),
        "Where; repeat it to hunt through several, in order; `auto` for all that is allowed.",
        single=True,
        examples=("us-central2-b",),
    )
    tier: Tier | None = key(  # noqa: RUF009 - makes a field
        None,
        "How the capacity is paid for.",
        flags=("--spot", "--on-demand", "--preemptible", "--reserved", "--flex-start"),
        examples=("spot",),
    )
    pay: bool = key(False, "Agree to pay for what no grant covers.", examples=(True,))
    queued: bool | None = key(
        None,
        "Wait in the queue for capacity, or ask for the node directly.",
        flags=("--queued", "--direct"),
        examples=(False,),
    )
    runtime_version: str | None = key(
        None, "TPU VM software; default by type.", examples=("tpu-ubuntu2204-base",)
    )
    reservation: str | None = key(None, "With --reserved: of this reservation.", examples=("my-reservation",))
    run_duration: str | None = key(None, "With --flex-start: how long; at most 7d.", examples=("4h",))
    valid_until: str | None = key(
        None, "Create nothing after this time (UTC unless it says more).", examples=("2026-12-24T18:00Z",)
    )
    valid_for: str | None = key(None, "Let each request wait at most this long.", examples=("6h",))
    topology: str | None = key(
        None, "A shape, with a generation as the accelerator, such as v4.", examples=("4x4x12",)
    )
    slices: int | None = key(None, "Several slices in one request: multislice.", minimum=1, examples=(2,))
    network: str | None = key(None, "VPC network.", examples=("default",))
    subnetwork: str | None = key(None, "Subnetwork of the region.", examples=("default",))
    internal_ips: bool = key(False, "No external addresses.", examples=(True,))
    service_account: str | None = key(
        None,
        "Whose permissions programs on the hosts have.",
        examples=("trainer@my-project.iam.gserviceaccount.com",),
    )
    tag: tuple[str, ...] = key((), "Network tag; repeatable.", examples=(("training",),))
    label: Mapping[str, str] = key({}, "Label; repeatable.", text=True, examples=({"team": "vision"},))
    metadata: Mapping[str, str] = key(
        {}, "Entry of the metadata server; repeatable.", text=True, examples=({"team": "vision"},)
    )
    boot_disk: int | None = key(None, "Size of the boot disk in GiB.", examples=(200,))
    startup_script: str | None = key(
        None, "File that runs as root at every boot of every host.", examples=("boot.sh",)
    )
    ttl: str | None = key(None, "Take it down after this long.", examples=("8h",))
    stop_when_idle: str | None = key(None, "Take it down when unused for this long.", examples=("30m",))


@dataclass(frozen=True)
class PolicyWish:
    """When a run is started again, and how it is stopped. `grace` is in seconds."""

    max_failures: int = key(
        Policy().max_failures,
        "Restarts after failures of the program; two alike within a minute of its start are enough.",
        minimum=0,
        examples=(1,),
    )
    max_preemptions: int = key(
        Policy().max_preemptions, "Restarts after preemptions.", minimum=0, examples=(20,)
    )
    grace: float = key(Policy().grace_s, "Between TERM and KILL at a stop.", minimum=0, examples=(60,))

    def policy(self) -> Policy:
        return Policy(max_failures=self.max_failures, max_preemptions=self.max_preemptions, grace_s=self.grace)


@dataclass(frozen=True)
class RunWish:
    """A program on the workers of a slice, as asked for. One of `script`, `module` and `command` is given."""

    on: str | None = key(None, "The slice.", examples=("big",))
    script: str | None = key(None, "A script, run by Python.", flags=("SCRIPT",), examples=("train.py",))
    module: str | None = key(None, "Run a module.", flags=("-m",), examples=("pkg.train",))
    command: tuple[str, ...] = key(
        (), "Any command, word by word.", flags=("COMMAND",), text=True, examples=(("bash", "train.sh"),)
    )
    args: tuple[str, ...] = key(
        (), "Arguments of the script or module.", flags=("ARGS",), text=True, examples=(("--lr", 0.1),)
    )
    worker: str | None = key(
        None,
        WORKERS_HELP,
        flags=("--worker", "--all-workers"),
        text=True,
        examples=("0-3,7",),
    )
    alone: bool = key(False, "With --worker: yes, without the other workers.", examples=(True,))
    var: Mapping[str, str] = key(
        {}, "Variable for the program; repeatable.", text=True, examples=({"SEED": 1},)
    )
    secret: Mapping[str, str] = key(
        {}, "Secret from env:VAR or file:PATH; repeatable.", examples=({"TOKEN": "env:TOKEN"},)
    )
    env: str | None = key(None, "Pinned environment.", examples=("demo-cpu",))
    checkpoint_dir: str | None = key(None, "gs:// place for checkpoints.", examples=("gs://bucket/run1",))
    no_checkpoint: bool = key(False, "Restarts begin from scratch, and that is fine.", examples=(True,))
    any_region: bool = key(False, "Hunt also away from the checkpoints' bucket.", examples=(True,))
    policy: PolicyWish = key(  # noqa: RUF009 - makes a field
        PolicyWish,
        "How often it is started again, and how it is stopped.",
        examples=({"max_failures": 1},),
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
    if wish.no_checkpoint and wish.checkpoint_dir is not None:
        raise _about("no_checkpoint", "--checkpoint-dir and --no-checkpoint exclude each other", "keep one")
    for name, value in wish.var.items():
        _told(parse_var, "var", f"{name}={value}")
    for name, reference in wish.secret.items():
        _told(parse_secret, "secret", f"{name}={reference}")
    return render_argv(script=wish.script, module=wish.module, command=wish.command, arguments=list(wish.args))


def help_of(wish: Any, name: str) -> str:
    """The one help text of a field."""
    return registry(wish)[name].help


def tier_of_flags(**given: bool) -> Tier | None:
    """The tier whose flag was given, None for none; keywords are tiers with `_`. Raises UsageError for two."""
    chosen = [tier for tier in Tier if given.get(tier.replace("-", "_"))]
    if len(chosen) > 1:
        names = " and ".join(f"--{tier}" for tier in chosen)
        raise UsageError(f"{names} exclude each other", hint=f"keep --{chosen[0]}")
    return chosen[0] if chosen else None


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
    from tpuctl.slices.resolve import settle  # for help texts alone, every command imports this module

    return settle(_ask(wish, config, script), name, catalog, grants, now)


def limits_of(wish: SliceWish) -> Limits:
    """When a slice is to go by itself. Raises UsageError, with the key it is about in its details."""
    from tpuctl.slices.lifetime import WARN_BEFORE_S

    def parsed(key: str, flag: str) -> float | None:
        word = getattr(wish, key)
        seconds = None if word is None else told(flag, lambda: parse_duration(word, flag))
        if seconds is not None and seconds <= WARN_BEFORE_S:
            why = f"{flag} {word} is too short: the hosts are warned ten minutes before"
            raise _about(key, why, f"{flag} 30m")
        return seconds

    return Limits(ttl_s=parsed("ttl", "--ttl"), idle_s=parsed("stop_when_idle", "--stop-when-idle"))


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


_FLAG = re.compile(r"--[a-z][-a-z]*")


def in_file_words(text: str, shape: Any) -> str:
    """`text` with the flags of `shape` as the keys that say the same: `--zone us-east1-d` is
    `zone: us-east1-d` in a file, `--spot` is `tier: spot`."""

    def as_key(match: re.Match[str]) -> str:
        flag = match[0]
        for name, about in registry(shape).items():
            flags = about.flags or (f"--{name.replace('_', '-')}",)
            if flag in flags:
                return _as_key(name, hints_of(shape)[name], flags.index(flag), flag, text[match.end() :])
        return flag

    found = _FLAG.sub(as_key, text)
    for name, hint in hints_of(shape).items():
        if isinstance(typing.get_origin(hint), type) and issubclass(typing.get_origin(hint), Mapping):
            found = re.sub(rf"\b{name}: (\w+)=([^\s,]+)", rf"{name}: {{\1: \2}}", found)
    return found


def file_help(shape: Any, name: str) -> str:
    """What a key means, in words of a file."""
    text = help_of(shape, name).replace("; repeatable", "").replace("; repeat it to", "; several to")
    return in_file_words(text, shape)


def _as_key(name: str, hint: Any, index: int, flag: str, rest: str) -> str:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"{name}: {flag.removeprefix('--')}"
    if hint is bool:
        return f"{name}: {'true' if index == 0 else 'false'}"
    follows = rest.startswith(" ") and not rest[1:].startswith(("and ", "or ", "is ", "leaves "))
    return f"{name}:" if follows else name
