"""Which slice a command means."""

from __future__ import annotations

import re

from tpuctl.engine.services import Services
from tpuctl.errors import NotFoundError, UsageError
from tpuctl.lib.names import MAX_SLICE_NAME, is_slice_name
from tpuctl.lib.text import suggest
from tpuctl.model.accelerators import Catalog
from tpuctl.model.records import RunRecord, SliceRecord, SliceState
from tpuctl.slices.ssh_entries import follow_slices
from tpuctl.state.repository import (
    find_run,
    find_slice,
    get_run,
    get_slice,
    known_names,
    list_slices,
    readable_runs,
    readable_slices,
)


def resolve_slice(services: Services, name: str | None, *, flag: str = "", otherwise: str = "") -> SliceRecord:
    """The slice called `name`, or the caller's own only slice. Raises NotFoundError or UsageError.

    What this machine's own `ssh` knows of it follows it. `flag` is how the command takes the name, if not as a
    word, and `otherwise` what one may do instead.
    """
    record = get_slice(services, name).record if name is not None else _only_slice(services, flag, otherwise)
    follow_slices(services, [record])
    return record


def own_dev_slice(
    services: Services, catalog: Catalog, accelerator: str | None, name: str | None
) -> tuple[str | None, str | None]:
    """Type and name, as for `up`, of the slice that `dev` means: without a name that of the user, `dev-USER`. A
    type is not needed where it is there, or was before."""
    if name is not None or (
        accelerator is not None and catalog.find(accelerator) is None and is_known(services, accelerator)
    ):
        return accelerator, name
    plain = re.sub("[^a-z0-9]+", "-", services.user.lower())
    own = f"dev-{plain}"[:MAX_SLICE_NAME].rstrip("-")
    return (own, None) if accelerator is None and is_known(services, own) else (accelerator, own)


def is_known(services: Services, name: str) -> bool:
    """Whether a slice has that name, or had it."""
    return is_slice_name(name) and find_slice(services, name) is not None


def run_called(services: Services, name: str) -> RunRecord | None:
    """The run that `name` means; None where it is a slice. Raises NotFoundError where it is neither."""
    slice_ = find_slice(services, name)
    if slice_ is not None and slice_.record.state is not SliceState.GONE:
        return None
    found = get_run(services, name) if name == "last" else find_run(services, name)
    if found is None and slice_ is None:
        records = readable_slices(services)[0]
        near = suggest(name, [each.name for each in records] + [run.id for run in readable_runs(services)[0]])
        hint = f"did you mean {near}? " if near else ""
        raise NotFoundError(
            f"no slice or run called {name} (known: {known_names(records)})",
            hint=f"{hint}`tpuctl ls` and `tpuctl runs` list them",
        )
    return None if found is None else found.record


def _only_slice(services: Services, flag: str, otherwise: str) -> SliceRecord:
    mine = [
        record
        for record in list_slices(services)
        if record.owner == services.user and record.state is not SliceState.GONE
    ]
    if len(mine) == 1:
        return mine[0]
    names = ", ".join(record.name for record in mine)
    if not mine:
        raise UsageError("you have no slice", hint="tpuctl up ACCELERATOR --spot" + otherwise)
    add = f"{flag} NAME with" if flag else "add"
    raise UsageError(f"which slice? you have {names}", hint=f"{add} one of these names{otherwise}")
