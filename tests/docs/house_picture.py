"""The picture of the package: its folders as rooms, on the floors that `make lint` checks, with their imports.

An arrow that follows from others is left out: who imports `slices` may import all that `slices` does.
"""

from __future__ import annotations

import ast
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tpuctl"
WIDTH, ROOM_WIDTH, ROOM_HEIGHT, GAP, FLOOR_HEIGHT = 1180, 154, 58, 12, 92
LETTERS, MOST_LINES = 27, 3
"""How much of what a folder says of itself goes into its room."""
STYLE = """\
  svg { background: #fff; font-family: system-ui, sans-serif; }
  rect { fill: #f3f6fb; stroke: #5b7ba8; }
  .name { font: 600 13px ui-monospace, monospace; fill: #17263c; text-anchor: middle; }
  .says { font-size: 9.5px; fill: #44546a; text-anchor: middle; }
  path { fill: none; stroke: #8fa6c4; stroke-width: 1.2; }
  .shipped { stroke-dasharray: 4 3; }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117; } rect { fill: #182231; stroke: #6d8ebd; }
    .name { fill: #e6edf3; } .says { fill: #a9b7c8; } path { stroke: #48607f; }
  }"""


def floors() -> list[list[str]]:
    """The rooms of each floor, the highest first, as the first contract of import-linter has them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    return [[name.strip().removeprefix("tpuctl.") for name in layer.split("|")] for layer in layers]


def imports(rooms: Sequence[str]) -> dict[str, set[str]]:
    """Which other rooms each of `rooms` imports."""
    found: dict[str, set[str]] = {}
    for room in rooms:
        files = (PACKAGE / room).rglob("*.py") if (PACKAGE / room).is_dir() else [PACKAGE / f"{room}.py"]
        nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
        modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
        found[room] = {m.split(".")[1] for m in modules if m.startswith("tpuctl.")} & set(rooms) - {room}
    return found


def reduced(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Without the arrows that follow from others. The graph has no circles."""

    def below(room: str) -> set[str]:
        return graph[room].union(*(below(other) for other in graph[room]))

    under = {room: below(room) for room in graph}
    return {room: others - set().union(*(under[other] for other in others)) for room, others in graph.items()}


def summary(room: str) -> str:
    """What a folder or file says of itself: what stands before details, where all of it is too long."""
    file = PACKAGE / room / "__init__.py" if (PACKAGE / room).is_dir() else PACKAGE / f"{room}.py"
    said = ast.get_docstring(ast.parse(file.read_text())) or ""
    text = said.split("\n\n")[0].replace("\n", " ").replace("`", "").partition(" (")[0]
    return text if len(text) <= LETTERS * MOST_LINES - 9 else text.partition(":")[0]


def _room(room: str, x: float, y: float) -> str:
    lines = textwrap.wrap(summary(room), LETTERS)
    middle = x + ROOM_WIDTH / 2
    texts = [f'<text class="name" x="{middle:.0f}" y="{y + 16:.0f}">{escape(room)}</text>']
    texts += [
        f'<text class="says" x="{middle:.0f}" y="{y + 29 + 11 * number:.0f}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]
    box = f'<rect x="{x:.0f}" y="{y:.0f}" width="{ROOM_WIDTH}" height="{ROOM_HEIGHT}" rx="6"/>'
    return "\n".join((box, *texts))


def _arrow(begin: tuple[float, float], end: tuple[float, float], kind: str = "") -> str:
    x1, y1, x2, y2 = begin[0] + ROOM_WIDTH / 2, begin[1] + ROOM_HEIGHT, end[0] + ROOM_WIDTH / 2, end[1]
    bend = min(60.0, (y2 - y1) / 2)
    curve = f"M{x1:.0f} {y1:.0f} C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2 - 2:.0f}"
    return f'<path{kind} d="{curve}" marker-end="url(#tip)"/>'


def render_house() -> str:
    """The whole picture, as SVG."""
    rows = floors()
    places: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        left = (WIDTH - len(row) * (ROOM_WIDTH + GAP) + GAP) / 2
        for column, room in enumerate(row):
            places[room] = (left + column * (ROOM_WIDTH + GAP), 14 + number * FLOOR_HEIGHT)
    graph = reduced(imports(list(places)))
    arrows = [_arrow(places[room], places[other]) for room in places for other in sorted(graph[room])]
    places["agent"] = (WIDTH - ROOM_WIDTH - 14, places["model"][1])
    arrows.append(_arrow(places["hosts"], places["agent"], ' class="shipped"'))
    height = 14 + len(rows) * FLOOR_HEIGHT
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
            ' aria-label="The folders of tpuctl on their floors, and what imports what">',
            f"<style>\n{STYLE}\n</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6"'
            ' orient="auto"><path d="M0 1 L7 4 L0 7"/></marker></defs>',
            *arrows,
            *(_room(room, *place) for room, place in places.items()),
            "</svg>\n",
        )
    )
