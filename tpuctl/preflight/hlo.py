"""What the text of a compiled program says: its collectives with the trips of their loops, and where in the
user's code an instruction comes from.

The text is XLA's (https://openxla.org/xla/hlo_dumps), as `Compiled.as_text()` of JAX gives it: computations
with one instruction a line, and tables of files and lines before them. The compiler's own analysis counts the
body of a loop once; here it counts as often as the loop turns.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-permute",
    "reduce-scatter",
    "ragged-all-to-all",
)
SCATTERED = "reduce-scatter"
"""Also in the name of a computation in which the TPU fuses an all-reduce with the slice that is taken of it."""
BYTES: Mapping[str, float] = {
    **dict.fromkeys(("pred", "s8", "u8"), 1),
    **dict.fromkeys(("s4", "u4"), 0.5),
    **dict.fromkeys(("s2", "u2"), 0.25),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
    "c128": 16,
}
"""Of one element; a type that is not here and begins with f8 or f4 is that wide."""

_HEAD = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_CALLED = re.compile(r"(?:calls|body|to_apply|true_computation|false_computation)=%([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_CONDITION = re.compile(r"condition=%([\w.\-]+)")
_KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_DIRECTION = re.compile(r"direction=([A-Z]{2})")
_OPERAND = re.compile(r"%([\w.\-]+)")
_SHAPE = re.compile(r"\b([a-z]+[0-9]*[a-z0-9]*)\[([0-9,]*)\]")
_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_FILE = re.compile(r'(\d+) "(.*)"$')
_LOCATION = re.compile(r"(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)")
_PARENT = re.compile(r"(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?\}")


class Instruction(Struct, frozen=True):
    """One line of a computation; `shape` as text, `rest` what follows the opening bracket of its operands."""

    name: str
    shape: str
    opcode: str
    rest: str
    root: bool


class Collective(Struct, frozen=True):
    """All collectives of one kind in one step, on one device: how many begin, and the bytes of their
    results."""

    kind: str
    count: int
    bytes: int


class HloModule(Struct, frozen=True):
    """A program: its computations, which of them is entered, and the tables of its sources."""

    computations: Mapping[str, Sequence[Instruction]]
    entry: str
    files: Mapping[int, str]
    locations: Mapping[int, tuple[int, int]]
    frames: Mapping[int, tuple[int, int]]

    def find(self, name: str) -> Instruction | None:
        """By name, in whatever computation."""
        return next((each for body in self.computations.values() for each in body if each.name == name), None)

    def source(self, instruction: Instruction, file: str) -> str:
        """`FILE:LINE` of the user's code, the innermost that is in `file`, else the innermost; empty where the
        text does not say it."""
        found = _FRAME.search(instruction.rest)
        places = list(self._places(int(found[1]))) if found else []
        own = [place for place in places if place[0] == file]
        if not places:
            return ""
        path, line = (own or places)[0]
        return f"{path.rpartition('/')[2]}:{line}"

    def _places(self, frame: int) -> Iterator[tuple[str, int]]:
        seen: set[int] = set()
        while frame in self.frames and frame not in seen:
            seen.add(frame)
            location, parent = self.frames[frame]
            file, line = self.locations.get(location, (0, 0))
            yield self.files.get(file, ""), line
            # Parents are counted from 1 for "none", so the number is one more than the frame's.
            frame = parent - 1


def parse_module(text: str) -> HloModule:
    """The program in `text`. What it does not know of it leaves out; it raises nothing."""
    computations: dict[str, list[Instruction]] = {}
    files: dict[int, str] = {}
    locations: dict[int, tuple[int, int]] = {}
    frames: dict[int, tuple[int, int]] = {}
    entry, body = "", None
    for line in text.splitlines():
        if head := _HEAD.match(line):
            body = computations.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif body is not None:
            if found := _INSTRUCTION.match(line):
                body.append(Instruction(found[2], found[3], found[4], found[5], bool(found[1])))
        elif found := _FILE.match(line):
            files.setdefault(int(found[1]), found[2])  # functions come after files, in the same form
        elif found := _LOCATION.match(line):
            locations[int(found[1])] = (int(found[2]), int(found[3]))
        elif found := _PARENT.match(line):
            frames[int(found[1])] = (int(found[2]), int(found[3] or 0))
    return HloModule(computations, entry, files, locations, frames)


def count_collectives(module: HloModule) -> tuple[list[Collective], int]:
    """The collectives of one step by kind, most bytes first, and in how many loops the number of trips is not
    known: these count once."""
    found: dict[str, tuple[int, int]] = {}
    unknown: set[str] = set()
    for place, instruction, times in _executed(module, module.entry, 1, unknown, ()):
        kind = instruction.opcode.removesuffix("-start")
        if kind in COLLECTIVES:
            kind = SCATTERED if SCATTERED in place else kind
            count, size = found.get(kind, (0, 0))
            found[kind] = (count + times, size + times * result_bytes(instruction))
    rows = [Collective(kind, count, size) for kind, (count, size) in found.items()]
    return sorted(rows, key=lambda row: (-row.bytes, row.kind)), len(unknown)


def _executed(
    module: HloModule, name: str, times: int, unknown: set[str], above: tuple[str, ...]
) -> Iterator[tuple[str, Instruction, int]]:
    """Each instruction with the name of its computation, and how often it is executed."""
    if name in above:
        return
    for instruction in module.computations.get(name, ()):
        yield name, instruction, times
        trips = 1
        if instruction.opcode == "while":
            known = _trips(module, instruction)
            if known is None:
                unknown.add(instruction.name)
            trips = 1 if known is None else known
        elif instruction.opcode in COLLECTIVES or instruction.opcode.endswith(("reduce", "-done")):
            continue  # what it calls adds two numbers up
        called = _CALLED.findall(instruction.rest)
        for branches in _BRANCHES.findall(instruction.rest):
            called += _OPERAND.findall(branches)
        for each in called:
            yield from _executed(module, each, times * trips, unknown, (*above, name))


def _trips(module: HloModule, loop: Instruction) -> int | None:
    """How often a loop turns that counts from 0 by 1, as every scan does; None where its condition is
    another."""
    known = _KNOWN_TRIPS.search(loop.rest)
    if known:
        return int(known[1])
    condition = _CONDITION.search(loop.rest)
    body = module.computations.get(condition[1], ()) if condition else ()
    root = next((each for each in body if each.root), None)
    direction = _DIRECTION.search(root.rest) if root is not None and root.opcode == "compare" else None
    if root is None or direction is None or direction[1] not in ("LT", "LE"):
        return None
    operands = _OPERAND.findall(root.rest.partition(")")[0])
    constants = {each.name: each.rest.partition(")")[0] for each in body if each.opcode == "constant"}
    limit = constants.get(operands[-1], "") if operands else ""
    return int(limit) + (direction[1] == "LE") if limit.isdigit() else None


def result_bytes(instruction: Instruction) -> int:
    """Bytes of what it gives, without padding; of an operation in two halves, of its largest part."""
    sizes = [shape_bytes(kind, dims) for kind, dims in _SHAPE.findall(instruction.shape)]
    if not sizes:
        return 0
    return max(sizes) if instruction.opcode.endswith("-start") else sum(sizes)


def shape_bytes(kind: str, dims: str) -> int:
    """`bf16`, `8,128` → 2048."""
    width = BYTES.get(kind, 1 if kind.startswith("f8") else 0.5 if kind.startswith("f4") else 0)
    return math.ceil(math.prod(int(each) for each in dims.split(",") if each) * width)


def op_name(instruction: Instruction) -> str:
    """What JAX calls it: `jit(step)/while/body/dot_general`, or the name of an argument."""
    found = _NAME.search(instruction.rest)
    return found[1].replace("\\'", "'") if found else ""
