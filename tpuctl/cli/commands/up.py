"""`tpuctl up`: bring a slice up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tpuctl.cli.completion import slice_names
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun, Timeout
from tpuctl.errors import UsageError
from tpuctl.lib.options import Option, argument
from tpuctl.model.slice_spec import SliceRequest


def up(
    context: AppContext,
    accelerator: Annotated[
        str | None,
        argument(
            "[ACCELERATOR]",
            "Accelerator type, such as v4-32; v4 with --topology; several for --race.",
            complete=slice_names,
        ),
    ] = None,
    name: Annotated[str | None, argument("[NAME]", "Name; the type if left out.")] = None,
    request: SliceRequest = SliceRequest(),
    no_wait: Annotated[bool, Option("Request it and return at once.")] = False,
    timeout: Timeout = None,
    dry_run: DryRun = False,
) -> None:
    """Bring a slice up and wait until every host answers.

    Creates the request, waits for capacity, then checks every host over SSH. The same command again continues
    with the same slice, and changes nothing once it is ready.
    """
    from tpuctl.cli.following import warn_if_unwatched
    from tpuctl.cli.slice_status import print_preview
    from tpuctl.slices.bring_up import bring_up, preview_slice, request_wanted, resolve_wanted
    from tpuctl.views.slices import slice_status

    _check_order(accelerator, name)
    since = context.store.now()
    request = request.of(accelerator)
    wanted = resolve_wanted(context, context.config, request, name, Path.cwd())
    context.require_credentials()
    if dry_run:
        print_preview(context, wanted, preview_slice(context, wanted))
        return
    request_wanted(context, wanted)
    with context.interruptible(
        f"slice {wanted.name} is still wanted and may cost money: `tpuctl up {wanted.name}` waits on, "
        f"`tpuctl down {wanted.name}` gives it up"
    ):
        deadline = context.deadline(timeout)
        bring_up(context, wanted, since=since, wait=not no_wait, deadline=deadline)
        if no_wait:
            warn_if_unwatched(context, f"slice {wanted.name}", detached=True)
        status = slice_status(context, wanted.name)
        context.console.answer(status, f"{wanted.name} is {status['state']}: {status['cloud']}")


def _check_order(accelerator: str | None, name: str | None) -> None:
    """Raises UsageError for `up NAME TYPE`."""
    if accelerator is None or name is None:
        return
    from tpuctl.model.shipped_files import load_accelerators

    catalog = load_accelerators()
    if catalog.find(name) is not None and catalog.find(accelerator) is None:
        raise UsageError(
            f"{name} is the type, and comes before the name", hint=f"tpuctl up {name} {accelerator}"
        )
