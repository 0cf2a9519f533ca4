"""The flags that say how capacity is asked for: one definition for every command that can bring a slice up."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from tpuctl.cli.invocation import invocation
from tpuctl.errors import UsageError
from tpuctl.lib.input_files import read_file
from tpuctl.slices.options import SliceWish, help_of, tier_of_flags

PARAMETER = "capacity"


PAID, WHERE, WHAT, ACCESS = "How it is paid for", "Where and how long", "What it is", "Network and identity"
"""Groups of the flags in help."""


def _option(flag: str, metavar: str, group: str) -> Any:
    name = flag.removeprefix("--").replace("-", "_")
    return typer.Option(flag, metavar=metavar, help=help_of(SliceWish, name), rich_help_panel=group)


def _switch(flag: str, help_text: str, group: str = PAID) -> Any:
    return typer.Option(flag, help=help_text, show_default=False, rich_help_panel=group)


@dataclass(frozen=True)
class Capacity:
    """The flags as they were typed. Each field is one option of the command line."""

    zone: Annotated[list[str] | None, _option("--zone", "ZONE", WHERE)] = None
    spot: Annotated[bool, _switch("--spot", "Spot capacity: cheap, may be taken away.")] = False
    on_demand: Annotated[bool, _switch("--on-demand", "On-demand capacity.")] = False
    preemptible: Annotated[bool, _switch("--preemptible", "Preemptible capacity (older than spot).")] = False
    reserved: Annotated[bool, _switch("--reserved", "Capacity of a reservation.")] = False
    reservation: Annotated[str | None, _option("--reservation", "NAME", PAID)] = None
    flex_start: Annotated[bool, _switch("--flex-start", "Capacity for a fixed time.")] = False
    run_duration: Annotated[str | None, _option("--run-duration", "TIME", PAID)] = None
    pay: Annotated[bool, _switch("--pay", help_of(SliceWish, "pay"))] = False
    queued: Annotated[bool | None, _switch("--queued/--direct", help_of(SliceWish, "queued"), WHERE)] = None
    valid_until: Annotated[str | None, _option("--valid-until", "WHEN", WHERE)] = None
    valid_for: Annotated[str | None, _option("--valid-for", "TIME", WHERE)] = None
    topology: Annotated[str | None, _option("--topology", "AxBxC", WHAT)] = None
    slices: Annotated[int | None, _option("--slices", "N", WHAT)] = None
    runtime_version: Annotated[str | None, _option("--runtime-version", "NAME", WHAT)] = None
    network: Annotated[str | None, _option("--network", "NAME", ACCESS)] = None
    subnetwork: Annotated[str | None, _option("--subnetwork", "NAME", ACCESS)] = None
    internal_ips: Annotated[bool, _switch("--internal-ips", help_of(SliceWish, "internal_ips"), ACCESS)] = False
    service_account: Annotated[str | None, _option("--service-account", "EMAIL", ACCESS)] = None
    tag: Annotated[list[str] | None, _option("--tag", "TAG", ACCESS)] = None
    label: Annotated[list[str] | None, _option("--label", "K=V", WHAT)] = None
    metadata: Annotated[list[str] | None, _option("--metadata", "K=V", WHAT)] = None
    boot_disk: Annotated[int | None, _option("--boot-disk", "GIB", WHAT)] = None
    startup_script: Annotated[str | None, _option("--startup-script", "FILE", WHAT)] = None
    ttl: Annotated[str | None, _option("--ttl", "TIME", WHERE)] = None
    stop_when_idle: Annotated[str | None, _option("--stop-when-idle", "TIME", WHERE)] = None

    @property
    def given(self) -> bool:
        """Whether any of them was typed, an agreement to pay aside."""
        return any(getattr(self, item.name) != item.default for item in fields(self) if item.name != "pay")

    def wish(self, accelerator: str | None) -> SliceWish:
        """The slice that was asked for. Raises UsageError."""
        return SliceWish(
            accelerator=accelerator,
            zone=tuple(self.zone or ()),
            tier=tier_of_flags(
                spot=self.spot,
                on_demand=self.on_demand,
                preemptible=self.preemptible,
                reserved=self.reserved,
                flex_start=self.flex_start,
            ),
            pay=self.pay,
            queued=self.queued,
            runtime_version=self.runtime_version,
            reservation=self.reservation,
            run_duration=self.run_duration,
            valid_until=self.valid_until,
            valid_for=self.valid_for,
            topology=self.topology,
            slices=self.slices,
            network=self.network,
            subnetwork=self.subnetwork,
            internal_ips=self.internal_ips,
            service_account=self.service_account,
            tag=tuple(self.tag or ()),
            label=_pairs("--label", self.label),
            metadata=_pairs("--metadata", self.metadata),
            boot_disk=self.boot_disk,
            startup_script=self.startup_script,
            ttl=self.ttl,
            stop_when_idle=self.stop_when_idle,
        )


NOTHING_SAID = Capacity()


def _pairs(flag: str, words: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words or []:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"{flag} {word!r} is not K=V", hint=f"{flag} team=vision")
        if key in found:
            raise UsageError(f"{flag} {key} is said twice", hint="say it once")
        found[key] = value
    return found


def read_script(wish: SliceWish, directory: Path) -> bytes | None:
    """The startup script of a slice, its path relative to `directory`; None where there is none.

    Raises UsageError for a file that cannot be read.
    """
    if wish.startup_script is None:
        return None
    try:
        return read_file(directory / Path(wish.startup_script).expanduser())
    except (OSError, RuntimeError) as error:  # RuntimeError: ~nobody
        raise UsageError(
            f"--startup-script {wish.startup_script}: {getattr(error, 'strerror', None) or error}",
            hint="the path of a script on this machine",
            details={"key": "startup_script"},
        ) from error


def _refuse_both(ctx: typer.Context, one: str, other: str) -> None:
    """Raises UsageError where both sides of one switch were typed: of these only the last is heard."""
    typed = invocation(ctx).arguments
    own = typed[: typed.index("--")] if "--" in typed else typed
    if one in own and other in own:
        raise UsageError(f"{one} and {other} exclude each other", hint=f"keep {one}")


def with_capacity(command: Callable[..., None]) -> Callable[..., None]:
    """Gives `command` every flag of `Capacity` in the place of its parameter `capacity`."""
    hints = get_type_hints(Capacity, include_extras=True)
    options = [
        inspect.Parameter(
            item.name, inspect.Parameter.KEYWORD_ONLY, default=item.default, annotation=hints[item.name]
        )
        for item in fields(Capacity)
    ]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        _refuse_both(values["ctx"], "--queued", "--direct")
        typed = {item.name: values.pop(item.name) for item in options}
        command(**values, **{PARAMETER: Capacity(**typed)})

    own = inspect.signature(command, eval_str=True).parameters.values()
    names = [item.name for item in own]
    at = names.index(PARAMETER)
    kept = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own if item.name != PARAMETER]
    wrapper.__signature__ = inspect.Signature([*kept[:at], *options, *kept[at:]])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {item.name: item.annotation for item in [*kept, *options]}
    return wrapper
