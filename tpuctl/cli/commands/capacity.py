"""`tpuctl capacity`: where capacity was found, how soon and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tpuctl.cli.console import Column
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import Overwrite
from tpuctl.errors import UsageError
from tpuctl.lib.options import Option, argument

if TYPE_CHECKING:
    from tpuctl.model.capacity import CapacityNote


CAPACITY = (
    Column("zone", "ZONE", whole=True),
    Column("type", "TYPE"),
    Column("tier", "TIER"),
    Column("got", "GOT", right=True),
    Column("wait", "WAIT", right=True),
    Column("life", "LIFE", right=True),
    Column("found", "LAST FOUND"),
    Column("state", "NOW", give=1),
)


def capacity(
    context: AppContext,
    accelerator: Annotated[str | None, argument("[ACCELERATOR]", "Only this type, such as v4-32.")] = None,
    plot: Annotated[
        str | None, Option("Also draw it, hour by hour, as an SVG picture for your browser.", metavar="FILE")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Show where there was capacity, how soon and for how long."""
    from tpuctl.lib.codec import to_data
    from tpuctl.model.shipped_files import load_accelerators
    from tpuctl.slices.capacity_notes import count_open, list_notes

    kind = None if accelerator is None else load_accelerators().get(accelerator).name
    picture = None if plot is None else _check_picture(plot, overwrite=overwrite)
    found = [note for note in list_notes(context) if kind in (None, note.accelerator_type)]
    if picture is not None and found:
        _draw(picture, found, context.store.now())
        context.console.say(f"picture written to {picture}")
    pending = count_open(context)
    if context.console.json_mode:
        context.console.data([{**to_data(note), "open": pending[note.name]} for note in found])
        return
    rows = [_row(note, pending[note.name], context.store.now()) for note in found]
    about = f" about {kind}" if kind else ""
    context.console.table(
        rows, CAPACITY, empty=f"nothing is known yet{about}; `tpuctl up` learns with every request"
    )


def _check_picture(name: str, *, overwrite: bool) -> Path:
    """Where a picture goes; an older one there is replaced. Raises UsageError."""
    from tpuctl.lib.output_files import check_output

    path = Path(name).expanduser()
    if path.suffix != ".svg":
        raise UsageError(f"--plot {name}: the name must end in .svg", hint="--plot capacity.svg")
    return check_output(path, "--plot", kind="picture of tpuctl", ours=_is_picture, overwrite=overwrite)


def _is_picture(head: bytes) -> bool:
    from tpuctl.views.plot import TITLE

    return TITLE.encode() in head


def _draw(path: Path, notes: Sequence[CapacityNote], now: float) -> None:
    from tpuctl.lib.output_files import write_output_text
    from tpuctl.views.plot import render_capacity

    write_output_text(path, "--plot", render_capacity(notes, now))


def _row(note: CapacityNote, pending: int, now: float) -> dict[str, Any]:
    return {
        "zone": note.zone,
        "type": note.accelerator_type,
        "tier": str(note.tier),
        "got": _got(note, pending),
        "wait": _span(note.median_wait_s),
        "life": _span(note.median_life_s),
        "found": "never" if note.last_ready_at is None else f"{_span(now - note.last_ready_at)} ago",
        "state": f"left alone for {_span(note.not_before - now)}: {note.last_error}"
        if note.not_before > now
        else "open",
    }


def _got(note: CapacityNote, pending: int) -> str:
    """How many requests of those that have ended one way or the other got something."""
    ended = f"{note.granted}/{max(note.granted, note.asked - pending)}"
    return f"{ended}, {pending} open" if pending else ended


def _span(seconds: float | None) -> str:
    from tpuctl.lib.time import render_span

    return "" if seconds is None else render_span(seconds)
