"""`tpuctl top`: what chips and hosts do, refreshed in place."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from tpuctl.cli.console import Column, render_table
from tpuctl.cli.context import AppContext
from tpuctl.cli.errors import follows_ctrl_c
from tpuctl.cli.options import SliceOrRun
from tpuctl.errors import PartialError
from tpuctl.lib.options import Option
from tpuctl.lib.text import counted, fold_workers

if TYPE_CHECKING:
    from tpuctl.telemetry.summary import FigureRow, Folded
    from tpuctl.views.top import TopFrame

REFRESH_S = 2.0
TALK_LINES = 14
"""Of a screen: the head, what stands still, the spread, who is slowest, what compiles, and what tables have
beside their rows."""
TROUBLES, STALL_LINES, PROGRAM_LINES = 1, 3, 3
LINES_LEAST = 4
CHIPS = (
    Column("workers", "WORKER"),
    Column("chips", "CHIP"),
    Column("duty", "DUTY %", right=True),
    Column("hbm", "HBM GiB", right=True),
    Column("total", "OF", right=True),
    Column("queue", "QUEUE", right=True),
    Column("note", "", give=1),
)
HOSTS = (
    Column("workers", "WORKER"),
    Column("step", "STEP", right=True),
    Column("age", "AGE", right=True),
    Column("rate", "STEPS/S", right=True),
    Column("cpu", "CPU %", right=True),
    Column("memory", "MEM GiB", right=True),
    Column("disk", "DISK/s", right=True),
    Column("net", "NET/s", right=True),
    Column("note", "", give=1),
)
Figure = tuple[float, float] | None


def top(
    context: AppContext,
    name: SliceOrRun = None,
    once: Annotated[bool, Option("Print it once.")] = False,
) -> None:
    """Show what the chips and hosts of a slice or run do.

    Of each chip the duty cycle, memory and the queue of programs, as libtpu's runtime metrics service tells it;
    of each host the last step (of the newest run, where a slice has several), processor, memory, disks and
    network. Workers that are alike share a line; what is unknown is a dash. Ctrl-C ends it; without a terminal
    it prints once.
    """
    from tpuctl.telemetry.observe import Observer
    from tpuctl.views.top import frame_facts, take_frame

    console = context.console
    with Observer(context) as observer:
        frame = take_frame(context, observer, name)
        if console.json_mode:
            console.data(frame_facts(frame))
        elif once or not console.out.isatty():
            for line in _lines(frame, console.width, None):
                console.line(line)
        else:
            _refresh(context, frame, lambda: take_frame(context, observer, name))
            return
    silent = [host for host in frame.hosts if host.error]
    if silent and console.json_mode:
        raise typer.Exit(PartialError.exit_code)  # the document has them
    if silent:
        numbers = [host.worker for host in silent]
        raise PartialError(
            f"worker {fold_workers(numbers)} did not answer: {silent[0].error}",
            hint=f"tpuctl status {frame.slice.name}",
            details={"workers": numbers},
        )


def _refresh(context: AppContext, frame: TopFrame, again: Callable[[], TopFrame]) -> None:
    """Draws until Ctrl-C; then the last frame stays on the screen."""
    console, shown = context.console, frame
    try:
        with _screen(console.out) as draw:
            while True:
                width, height = shutil.get_terminal_size()
                draw([line[:width] for line in _lines(shown, console.width, height)[: height - 1]])
                context.clock.sleep(REFRESH_S)
                shown = again()
    except BaseException as error:
        if not follows_ctrl_c(error):
            raise
    for line in _lines(shown, console.width, None):
        console.line(line)


@contextmanager
def _screen(out: TextIO) -> Iterator[Callable[[Sequence[str]], None]]:
    """The terminal's other screen, without a cursor, and what draws there (xterm, "Control Sequences")."""

    def draw(lines: Sequence[str]) -> None:
        out.write("\x1b[H" + "".join(f"{line}\x1b[K\r\n" for line in lines) + "\x1b[J")
        out.flush()

    out.write("\x1b[?1049h\x1b[?25l\x1b[2J")
    try:
        yield draw
    finally:
        out.write("\x1b[?25h\x1b[?1049l")
        out.flush()


def _lines(frame: TopFrame, width: int, height: int | None) -> list[str]:
    """The screen; a `height` limits the lines of both tables together."""
    from tpuctl.telemetry.summary import fold
    from tpuctl.views.top import chip_rows, host_rows, slowest_of

    chips, hosts, slowest = chip_rows(frame.hosts), host_rows(frame), slowest_of(frame.hosts)
    most = 2 * LINES_LEAST if height is None else max(LINES_LEAST, (height - TALK_LINES) // 2)
    lines = [
        _head(frame),
        *_stall(frame, width),
        *_table([_chip_cells(each) for each in fold(chips, most)], CHIPS, width),
    ]
    lines += ["", *_table([_host_cells(each) for each in fold(hosts, most)], HOSTS, width)]
    lines += ["", *_spread_lines(chips, hosts, width)]
    lines += [f"slowest  {slowest.said}"] if slowest is not None else []
    return [*lines, *_program_lines(frame, width)]


def _program_lines(frame: TopFrame, width: int) -> list[str]:
    """What programs compile; of what slows them down the newest."""
    from tpuctl.views.top import program_facts

    facts = program_facts(frame)
    said = "; ".join(filter(None, (facts["compiled"], facts["compiling"], *facts["troubles"][-TROUBLES:])))
    text = f"compiles {said}" if said else ""
    return textwrap.wrap(text, width, subsequent_indent=" " * 9, max_lines=PROGRAM_LINES, placeholder=" …")


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column], width: int) -> list[str]:
    noted = any(row["note"].strip() for row in rows)
    return render_table(rows, columns if noted else columns[:-1], width=width) if rows else []


def _stall(frame: TopFrame, width: int) -> list[str]:
    """What keeps a run that stands still, as it was found last."""
    run = frame.run
    if run is None or run.attempt is None or run.attempt.cause is not None or not run.attempt.stalled:
        return []
    # The command first: of a long cause the end may be cut.
    text = f"stands still (`tpuctl stacks {run.id}`): {run.attempt.stalled_by or run.attempt.stalled}"
    return textwrap.wrap(text, width, subsequent_indent="  ", max_lines=STALL_LINES, placeholder=" …")


def _head(frame: TopFrame) -> str:
    from tpuctl.lib.time import render_clock
    from tpuctl.views.top import run_said

    more = f" and {counted(frame.others, 'more run')}" if frame.others else ""
    hosts = counted(len(frame.hosts), "host")
    return f"{frame.slice.name}  {run_said(frame)}{more}  {hosts}  {render_clock(frame.at)}"


def _chip_cells(row: Folded) -> dict[str, Any]:
    figures = row.figures
    return {
        "workers": fold_workers(row.workers),
        "chips": fold_workers(place for place in row.places if place >= 0),
        "duty": _span(figures["duty_percent"], "{:.0f}"),
        "hbm": _span(_scaled(figures["hbm_used"]), "{:.1f}"),
        "total": _span(_scaled(figures["hbm_total"]), "{:.0f}"),
        "queue": _span(figures["queue"], "{:.0f}"),
        "note": row.text or " ",
    }


def _host_cells(row: Folded) -> dict[str, Any]:
    figures = row.figures
    memory = _span(_scaled(figures["memory_used"]), "{:.0f}")
    of = _span(_scaled(figures["memory_total"]), "{:.0f}")
    return {
        "workers": fold_workers(row.workers),
        "step": _span(figures["step"], "{:g}"),
        "age": _span(figures["step_age_s"], "{:.0f}s"),
        "rate": _span(figures["steps_per_s"], "{:.2g}"),
        "cpu": _span(figures["cpu_percent"], "{:.0f}"),
        "memory": f"{memory}/{of}" if memory and of else None,
        "disk": _bytes(figures["disk_read_s"], figures["disk_written_s"]),
        "net": _bytes(figures["net_in_s"], figures["net_out_s"]),
        "note": row.text or " ",
    }


def _scaled(figure: Figure) -> Figure:
    return None if figure is None else (figure[0] / (1 << 30), figure[1] / (1 << 30))


def _span(figure: Figure, form: str) -> str | None:
    """`24`, or `5-90`."""
    if figure is None:
        return None
    least, most = (form.format(each) for each in figure)
    return least if least == most else f"{least}-{most}"


def _bytes(*ways: Figure) -> str | None:
    """Both ways together, of the host that has most: `1.2M`."""
    known = [way[1] for way in ways if way is not None]
    if not known:
        return None
    size = sum(known)
    for unit in ("", "K", "M", "G"):
        if size < 1000:
            return f"{size:.0f}{unit}" if size >= 10 or not unit else f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.1f}T"


def _spread_lines(chips: Sequence[FigureRow], hosts: Sequence[FigureRow], width: int) -> list[str]:
    """Of what differs between chips or hosts."""
    from tpuctl.telemetry.summary import spread

    words = {
        "duty_percent": ("duty", "{:.0f}", " %"),
        "step": ("step", "{:g}", ""),
        "steps_per_s": ("", "{:.2g}", " steps/s"),
        "cpu_percent": ("CPU", "{:.0f}", " %"),
        "checkpoint_s": ("checkpoint", "{:.3g}", " s"),
        "checkpoint_blocks_s": ("of which it blocks", "{:.3g}", " s"),
        "since_checkpoint_s": ("since the last", "{:.0f}", " s"),
        "data_wait_s": ("data wait", "{:.3g}", " s"),
    }
    parts = []
    for name, each in {**spread(chips), **spread(hosts)}.items():
        if name in words:
            title, form, unit = words[name]
            middle = form.format(each.median)
            span = _span((each.least, each.most), form)
            usual = f" (median {middle})" if span != middle else ""
            parts.append(f"{title} {span}{unit}{usual}".strip())
    return textwrap.wrap(f"spread   {', '.join(parts)}", width, subsequent_indent=" " * 9) if parts else []
