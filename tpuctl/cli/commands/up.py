"""`up`, `down`, `ls`, `status`: slices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tpuctl.cli.completion import slice_names
from tpuctl.cli.context import AppContext, open_context
from tpuctl.cli.invocation import invocation
from tpuctl.cli.options import DryRun, Json, Quiet, Timeout
from tpuctl.cli.slice_options import NOTHING_SAID, Capacity, with_capacity
from tpuctl.cli.slice_request import after_refused_login, wanted_slice
from tpuctl.errors import DeniedError, TransientError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.model.records import SliceRecord


STEPS_TO_ASK = 5
"""A slice whose TPU is gone gets a new number first, and a later step asks for it."""


@with_capacity
def up(
    ctx: typer.Context,
    accelerator: Annotated[
        str | None,
        typer.Argument(
            metavar="[ACCELERATOR]",
            help="Accelerator type, such as v4-32; v4 with --topology.",
            autocompletion=slice_names,
        ),
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Name; the type if left out.")] = None,
    capacity: Capacity = NOTHING_SAID,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Ask for it and return at once.")] = False,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    json: Json = False,  # noqa: ARG001 - acts through its callback
    quiet: Quiet = False,  # noqa: ARG001 - acts through its callback
) -> None:
    """Bring a slice up and wait until every host answers.

    Creates the request, waits for capacity, then checks every host over SSH. The same command again means the
    same slice and changes nothing once it is ready.
    """
    _check_order(accelerator, name)
    with open_context(ctx) as context:
        began = context.store.now()
        record = wanted_slice(context, capacity.wish(accelerator), name, dry_run=dry_run)
        if record is None:
            return
        invocation(ctx).if_interrupted = (
            f"slice {record.name} is still wanted and may cost money: `tpuctl up {record.name}` waits on, "
            f"`tpuctl down {record.name}` gives it up"
        )

        def ask_again() -> None:
            wanted_slice(context, capacity.wish(accelerator), name, dry_run=False)

        try:
            _bring_up(context, record, ask_again, wait=not no_wait, timeout=timeout)
        except (DeniedError, TransientError) as error:
            raise after_refused_login(context, record, error, first=record.created_at >= began) from error


def _check_order(accelerator: str | None, name: str | None) -> None:
    """Raises UsageError for `up NAME TYPE`."""
    if accelerator is None or name is None:
        return
    from tpuctl.model.data import load_accelerators

    catalog = load_accelerators()
    if catalog.find(name) is not None and catalog.find(accelerator) is None:
        raise UsageError(
            f"{name} is the type: it stands before the name", hint=f"tpuctl up {name} {accelerator}"
        )


def _bring_up(
    context: AppContext,
    record: SliceRecord,
    ask_again: Callable[[], None],
    *,
    wait: bool,
    timeout: float | None,
) -> None:
    """`ask_again` writes the request down once more, for a slice that was removed behind its record's back."""
    from tpuctl.model.records import SliceState
    from tpuctl.slices.reconcile import advance_slice, renew_if_removed, wait_for_slice
    from tpuctl.state.repository import get_slice
    from tpuctl.views.slices import slice_status

    deadline = None if timeout is None else context.clock.now() + timeout
    renew_if_removed(context, record.name, ask_again, patient=wait, deadline=deadline)
    if wait:
        wait_for_slice(context, record.name, deadline=deadline)
    else:
        from tpuctl.cli.following import warn_if_unwatched

        not_asked = {SliceState.REQUESTED, SliceState.LOST}
        for _ in range(STEPS_TO_ASK):
            outcome, _ = advance_slice(context, record.name)
            if not outcome.acted or get_slice(context, record.name).record.state not in not_asked:
                break
        warn_if_unwatched(context, f"slice {record.name}", detached=True)
    status_now = slice_status(context, record.name)
    if context.console.json_mode:
        context.console.data(status_now)
    else:
        context.console.say(f"{record.name} is {status_now['state']}: {status_now['cloud']}")
