"""Which slice a command means."""

from __future__ import annotations

from tpuctl.engine.services import Services
from tpuctl.errors import UsageError
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.slices.ssh_entries import follow_slices
from tpuctl.state.repository import get_slice, list_slices


def resolve_slice(services: Services, name: str | None, *, flag: str = "") -> SliceRecord:
    """The slice called `name`, or the caller's own only slice. Raises NotFoundError or UsageError.

    What this machine's own `ssh` knows of it follows it. `flag` is how the command takes the name, if not as a
    word.
    """
    record = get_slice(services, name).record if name is not None else _only_slice(services, flag)
    follow_slices(services, [record])
    return record


def _only_slice(services: Services, flag: str) -> SliceRecord:
    mine = [
        record
        for record in list_slices(services)
        if record.owner == services.user and record.state is not SliceState.GONE
    ]
    if len(mine) == 1:
        return mine[0]
    names = ", ".join(record.name for record in mine)
    raise UsageError(
        f"which slice? you have {names}" if mine else "you have no slice",
        hint=f"{f'{flag} NAME with' if flag else 'add'} one of these names"
        if mine
        else "tpuctl up ACCELERATOR --spot",
    )
