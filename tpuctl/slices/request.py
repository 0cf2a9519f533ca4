"""What was said about capacity, by flags or by a file: plain data in the units of the core, not yet checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tpuctl.errors import UsageError
from tpuctl.model.cloud import Tier

T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """What was said about capacity, or stands in the settings instead. Empty means: not said."""

    tier: Tier | None = None
    pay: bool = False
    zones: tuple[str, ...] = ()
    default_zones: tuple[str, ...] = ()
    queued: bool | None = None
    runtime_version: str | None = None
    reservation: str | None = None
    run_duration_s: float | None = None
    valid_until: float | None = None
    valid_for_s: float | None = None
    topology: str | None = None
    slices: int | None = None
    network: str | None = None
    subnetwork: str | None = None
    external_ips: bool = True
    login_user: str = "tpuctl"
    service_account: str | None = None
    tags: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    boot_disk_gib: int | None = None
    startup_script: bytes | None = None


_KEYS = {"--direct": "queued", "ACCELERATOR": "accelerator", **{f"--{tier}": "tier" for tier in Tier}}
"""Keys that are not called as their flag."""


def refused(flag: str, message: str, hint: str | None) -> UsageError:
    """The error about what was said with `flag`; a fleet file finds its key in the details."""
    key = _KEYS.get(flag, flag.removeprefix("--").replace("-", "_"))
    return UsageError(message, hint=hint, details={"key": key})


def told(flag: str, check: Callable[[], T]) -> T:
    """What `check` says; its UsageError also tells which key it is about."""
    try:
        return check()
    except UsageError as error:
        found = refused(flag, error.message, error.hint)
        raise UsageError(error.message, hint=error.hint, details={**error.details, **found.details}) from error
