"""All that is drawn: numbers over steps, as curves and as lines of text, and what was learnt about capacity.

Curves are SVG for within the page of a run, whose style sheet has their colours.

The picture of capacity has one row per zone, type and tier: left a cell for each hour of the day (UTC),
coloured by the share of requests that got capacity; right how long each request waited and how long each node
lived, on logarithmic scales. Blue and orange are told apart with every common kind of colour blindness (Okabe
and Ito, jfly.uni-koeln.de/color); cells also say their numbers. Viewers that prefer dark pages get a dark one.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from html import escape

from msgspec import Struct

from tpuctl.lib.text import counted, render_value
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


BARS = "▁▂▃▄▅▆▇█"
STRANGE, BETWEEN = "×", "┊"
"""In a line: a number that is infinite or none, and where another attempt begins."""


def draw_line(parts: Sequence[Sequence[float]], width: int) -> str:
    """Numbers as a line of at most so many bars; between parts, which are attempts, stands a mark."""
    parts = [part for part in parts if part][-width // 2 :]
    finite = [value for part in parts for value in part if math.isfinite(value)]
    axis = _axis_of(finite)

    def bar(values: Sequence[float]) -> str:
        mean = statistics.fmean(values)
        return BARS[min(7, int(axis.at(mean) * 8 / 100))] if math.isfinite(mean) else STRANGE

    whole, room = sum(map(len, parts)), width - len(parts) + 1
    drawn = []
    for part in parts:
        cells = max(1, min(len(part), room * len(part) // whole))
        edges = [cell * len(part) // cells for cell in range(cells + 1)]
        drawn.append("".join(bar(part[begin:end]) for begin, end in itertools.pairwise(edges)))
    return BETWEEN.join(drawn)


CURVE_HEIGHT = 120
"""Of the curves of a page, in pixels."""
LOGARITHMIC_FROM = 50.0
"""Where the greatest value is so many times the least, the scale is logarithmic."""
CROSSES_MAX = 20
"""In one picture: numbers that are infinite or none seldom end after the first."""


class Point(Struct, frozen=True):
    """Where a curve goes at `x`: its mean, and its extremes."""

    x: float
    mean: float
    low: float
    high: float


class Mark(Struct, frozen=True):
    """A place on the axis where something happened; `style` is a class of the page, such as `lost`."""

    x: float
    said: str
    style: str


class Drawing(Struct, frozen=True):
    """A picture within a page: what it shows, from where to where, and its SVG."""

    title: str
    said: str
    svg: str


class _Axis(Struct, frozen=True):
    """From values to percent of a picture."""

    low: float
    high: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        low, high, here = self.low, self.high, min(self.high, max(self.low, value))
        if self.logarithmic:
            low, high, here = math.log(low), math.log(high), math.log(here)
        return 100 * ((here / 2 - low / 2) / (high / 2 - low / 2)) if high > low else 50.0


def _axis_of(values: Sequence[float]) -> _Axis:
    low, high = min(values, default=0.0), max(values, default=0.0)
    return _Axis(low, high, logarithmic=low > 0 and high / LOGARITHMIC_FROM >= low)


def draw_curves(title: str, attempts: Sequence[Sequence[Point]], marks: Sequence[Mark]) -> Drawing:
    """A curve for each attempt, with a band from its least to its most behind it, and marks. Numbers that are
    infinite or none break a curve, and are crosses at the bottom."""
    points = [point for attempt in attempts for point in attempt]
    places = [*(point.x for point in points), *(mark.x for mark in marks)]
    across = _Axis(min(places, default=0.0), max(places, default=0.0))
    # Of means, not of extremes: a single outlier would press the curve flat.
    up = _axis_of([point.mean for point in points if math.isfinite(point.mean)])
    said = f"from {render_value(up.low)} to {render_value(up.high)}{', logarithmic' if up.logarithmic else ''}"
    label = f"{escape(title)} {said}"
    parts = [
        f'<svg class="curves" height="{CURVE_HEIGHT + 18}" role="img" aria-label="{label}">',
        f'<svg width="100%" height="{CURVE_HEIGHT}" viewBox="0 0 100 100" preserveAspectRatio="none">',
        '<rect class="track" width="100" height="100"/>',
    ]
    for mark in marks:
        x = f"{across.at(mark.x):.2f}"
        line = f'<line class="mark {mark.style}" x1="{x}" x2="{x}" y1="0" y2="100">'
        parts.append(f"{line}<title>{escape(mark.said)}</title></line>")
    for attempt in attempts:
        parts += _curve(attempt, across, up)
    parts.append("</svg>")
    crosses = [across.at(point.x) for point in points if not math.isfinite(point.mean)][:CROSSES_MAX]
    parts += [_words(x, CURVE_HEIGHT - 4, STRANGE, "middle", "strange") for x in crosses]
    for at, anchor, step in (
        (0, "start", across.low),
        (50, "middle", across.low / 2 + across.high / 2),
        (100, "end", across.high),
    ):
        parts.append(_words(at, CURVE_HEIGHT + 14, f"{step:,.0f}", anchor))
    return Drawing(title, said, "\n".join([*parts, "</svg>"]))


def _curve(points: Sequence[Point], across: _Axis, up: _Axis) -> Iterable[str]:
    for finite, group in itertools.groupby(points, lambda point: math.isfinite(point.mean)):
        if not finite:
            continue
        line = [(across.at(point.x), point) for point in group]
        top = [f"{x:.2f},{100 - up.at(point.high):.2f}" for x, point in line]
        bottom = [f"{x:.2f},{100 - up.at(point.low):.2f}" for x, point in reversed(line)]
        yield f'<polygon class="band" points="{" ".join([*top, *bottom])}"/>'
        means = [f"{x:.2f},{100 - up.at(point.mean):.2f}" for x, point in line]
        # A single point is a line of no length, which round ends make a dot.
        yield f'<polyline class="curve" points="{" ".join(means if len(means) > 1 else means * 2)}"/>'


def _words(x: float, y: float, words: str, anchor: str = "start", style: str = "") -> str:
    named = f' class="{style}"' if style else ""
    return f'<text{named} x="{x:g}%" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'
