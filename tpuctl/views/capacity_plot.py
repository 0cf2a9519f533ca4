"""A picture of what was learnt about capacity: one row per zone, type and tier, as SVG text.

Left a cell for each hour of the day (UTC), coloured by the share of requests that got capacity; right how long
each request waited and how long each node lived, on logarithmic scales. Blue and orange are told apart with
every common kind of colour blindness (Okabe and Ito, jfly.uni-koeln.de/color); cells also say their numbers.
Viewers that prefer dark pages get a dark one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from html import escape

from msgspec import Struct

from tpuctl.lib.text import counted
from tpuctl.lib.time import render_moment, render_span
from tpuctl.model.capacity import CapacityNote, HourStat

_NEVER, _HALF, _ALWAYS = (213, 94, 0), (236, 230, 214), (0, 114, 178)
"""Colours of a share of 0, a half and 1."""

LEFT, TOP, ROW, CELL, HEIGHT = 290, 84, 46, 27, 28
"""Where the cells begin, in pixels; the height of a row; the width and the height of a cell."""
STRIP, GAP, RADIUS = 220, 36, 3.5
"""Width of a strip of dots, the gap before it, and how large a dot is."""

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.small { font-size: 10.5px; fill: #59636e; }
.title { font-size: 16px; font-weight: 600; }
.cell { font-size: 10px; text-anchor: middle; }
.on { fill: #ffffff; }
.off { fill: #1f2328; }
.page { fill: #ffffff; }
.none { fill: #eff1f3; }
.grid { stroke: #d1d9e0; stroke-width: 1; }
.wait { fill: #0072b2; fill-opacity: 0.55; }
.life { fill: #009e73; fill-opacity: 0.55; }
.median { stroke: #1f2328; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .small { fill: #9198a1; } .page { fill: #0d1117; } .none { fill: #21262d; }
  .grid { stroke: #3d444d; } .median { stroke: #e6edf3; } .wait { fill: #56b4e9; } .life { fill: #2ec19a; }
  .off { fill: #1f2328; } .on { fill: #ffffff; }
}
"""


class _Scale(Struct, frozen=True):
    """A strip for spans: logarithmic between its first and last mark, what lies outside is put at the edge."""

    title: str
    style: str
    marks: Sequence[tuple[float, str]]

    def x(self, seconds: float) -> float:
        low, high = math.log(self.marks[0][0]), math.log(self.marks[-1][0])
        at = (math.log(max(seconds, 1e-9)) - low) / (high - low)
        return STRIP * min(1.0, max(0.0, at))


_WAITS = _Scale(
    "waited until READY",
    "wait",
    ((10, "10 s"), (60, "1 min"), (600, "10 min"), (3_600, "1 h"), (21_600, "6 h"), (86_400, "1 d")),
)
_LIVES = _Scale(
    "lived until it was taken away",
    "life",
    ((60, "1 min"), (600, "10 min"), (3_600, "1 h"), (21_600, "6 h"), (86_400, "1 d"), (604_800, "7 d")),
)


TITLE = "<title>Where TPU capacity was found</title>"
"""By which an earlier picture is known."""


def render_capacity(notes: Sequence[CapacityNote], now: float) -> str:
    """The whole picture; `now` in epoch seconds. At least one note."""
    strips = LEFT + 24 * CELL + GAP
    width, height = strips + 2 * STRIP + GAP + 40, TOP + ROW * len(notes) + 52
    moment = render_moment(now)[: len("2026-11-21T10:15")].replace("T", " ") + " UTC"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img">',
        TITLE,
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{width}" height="{height}"/>',
        _text(16, 28, f"Where capacity was found, as of {moment}", "title"),
        _text(LEFT, 58, "hour of the day (UTC): requests that got capacity / requests", "small"),
    ]
    parts += [
        _text(LEFT + (hour + 0.5) * CELL, TOP - 8, f"{hour:02d}", "small", "middle") for hour in range(24)
    ]
    bottom = TOP + ROW * len(notes)
    for left, scale in ((strips, _WAITS), (strips + STRIP + GAP, _LIVES)):
        parts += _axis(left, bottom, scale)
    for index, note in enumerate(notes):
        y = TOP + ROW * index
        parts += [*_label(note, y, now), *_cells(note, y)]
        parts += _dots(strips, y, note.waits_s, _WAITS)
        parts += _dots(strips + STRIP + GAP, y, note.lives_s, _LIVES)
    parts += _legend(bottom + 26)
    return "\n".join([*parts, "</svg>", ""])


def _label(note: CapacityNote, y: float, now: float) -> Iterable[str]:
    """Zone, type and tier, and below how it went in total."""
    seen = (
        "never found"
        if note.last_ready_at is None
        else f"last found {render_span(now - note.last_ready_at)} ago"
    )
    yield _text(16, y + 12, f"{note.zone}  {note.accelerator_type}")
    yield _text(16, y + 26, f"{note.tier}: {note.granted} of {note.asked}, {seen}", "small")


def _cells(note: CapacityNote, y: float) -> Iterable[str]:
    for hour in range(24):
        stat = note.hours.get(f"{hour:02d}", HourStat())
        x = LEFT + hour * CELL
        box = f'x="{x}" y="{y}" width="{CELL - 2}" height="{HEIGHT}" rx="3"'
        if not stat.asked:
            yield f'<rect class="none" {box}/>'
            continue
        share = min(1.0, stat.granted / stat.asked)
        title = f"{hour:02d}:00 UTC: {stat.granted} of {counted(stat.asked, 'request')} got capacity"
        yield f'<rect fill="{_colour(share)}" {box}><title>{title}</title></rect>'
        strong = "on" if share < 0.1 or share > 0.8 else "off"
        words = f"{stat.granted}/{stat.asked}"
        yield _text(x + CELL / 2 - 1, y + 18, words if len(words) <= 4 else f"{share:.0%}", f"cell {strong}")


def _dots(left: float, y: float, spans: Sequence[float], scale: _Scale) -> Iterable[str]:
    """One dot per span, and a line at the median."""
    middle = y + HEIGHT / 2
    for seconds in spans:
        at = f'cx="{left + scale.x(seconds):.1f}" cy="{middle}" r="{RADIUS}"'
        yield f'<circle class="{scale.style}" {at}><title>{render_span(seconds)}</title></circle>'
    if spans:
        x = left + scale.x(statistics.median(spans))
        yield f'<line class="median" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 3}" y2="{y + HEIGHT - 3}"/>'


def _axis(left: float, bottom: float, scale: _Scale) -> Iterable[str]:
    yield _text(left, 58, scale.title, "small")
    for seconds, name in scale.marks:
        x = left + scale.x(seconds)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{bottom - 8}"/>'
        yield _text(x, TOP - 8, name, "small", "middle")


def _legend(y: float) -> Iterable[str]:
    yield _text(16, y + 10, "share that came:", "small")
    for index, share in enumerate((0.0, 0.25, 0.5, 0.75, 1.0)):
        x = 110 + index * 62
        yield f'<rect fill="{_colour(share)}" x="{x}" y="{y}" width="16" height="12" rx="2"/>'
        yield _text(x + 21, y + 10, f"{share:.0%}", "small")
    yield f'<rect class="none" x="420" y="{y}" width="16" height="12" rx="2"/>'
    yield _text(441, y + 10, "nobody asked", "small")
    yield f'<line class="median" x1="550" x2="550" y1="{y}" y2="{y + 12}"/>'
    yield _text(558, y + 10, "median", "small")


def _colour(share: float) -> str:
    """Orange for 0, light for a half, blue for 1, and what lies between."""
    below = share < 0.5
    start, end = (_NEVER, _HALF) if below else (_HALF, _ALWAYS)
    part = share * 2 if below else share * 2 - 1
    mixed = (round(a + (b - a) * part) for a, b in zip(start, end, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def _text(x: float, y: float, words: str, style: str = "", anchor: str = "") -> str:
    named = f' class="{style}"' if style else ""
    placed = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:g}" y="{y:g}"{named}{placed}>{escape(words)}</text>'
