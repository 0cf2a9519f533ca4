"""`adopt`: take over a TPU that was made by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from tpuctl.cli.confirm import confirm
from tpuctl.cli.context import open_context
from tpuctl.cli.invocation import invocation
from tpuctl.cli.options import DryRun, Json, Quiet, Timeout, Yes


def adopt(
    ctx: typer.Context,
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node, or its queued resource.")],
    zone: Annotated[str | None, typer.Option("--zone", metavar="ZONE", help="Where it is.")] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the slice; from the node if left out.")
    ] = None,
    add_key: Annotated[
        bool,
        typer.Option(
            "--add-key", help="Add the SSH key of this machine to the metadata, and turn OS Login off."
        ),
    ] = False,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Take over a TPU that was created without tpuctl.

    Afterwards only `tpuctl down NAME` deletes it. Also takes back a slice of a lost store, which is then
    managed as before.
    """
    from tpuctl.lib.names import check_zone_name
    from tpuctl.model.shipped_files import load_accelerators
    from tpuctl.slices.adopt import adopt as take_over
    from tpuctl.slices.adopt import find_candidate
    from tpuctl.slices.reconcile import wait_for_slice
    from tpuctl.views.slices import slice_status

    with open_context(ctx) as context:
        found = find_candidate(context, node, check_zone_name(zone) if zone else None, name)
        if dry_run:
            context.console.fields({"would_adopt": found.name, "evidence": found.evidence})
            return
        if found.store not in ("", context.store.identity()):
            other = f"which carries the labels of another fleet ({found.store}) that may still want it"
            confirm(context, f"take over {node}, {other}?", yes=yes)
        invocation(ctx).if_interrupted = f"the adoption goes on with `tpuctl adopt {node}`"
        user = context.config.login_user
        record = take_over(context, load_accelerators(), found, login_user=user, add_key=add_key)
        deadline = None if timeout is None else context.clock.now() + timeout
        wait_for_slice(context, record.name, deadline=deadline)
        status = slice_status(context, record.name)
        if context.console.json_mode:
            context.console.data(status)
        else:
            context.console.say(f"{record.name} is {status['state']}: {found.evidence}")
