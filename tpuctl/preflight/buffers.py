"""The largest buffers of a compiled program in HBM, from the compiler's own list of what it allocates where."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from tpuctl.preflight.hlo import HloModule, op_name, shape_bytes

PADDED = 1.25
"""From this ratio of allocated to needed bytes on a buffer is worth a word: shapes are laid out in tiles of 8
by 128 (https://docs.cloud.google.com/tpu/docs/performance-guide)."""
PADDED_SHARE = 0.01
"""Of the HBM; smaller buffers are not worth it."""
_ALLOCATION = re.compile(r"allocation \d+: size (\d+),(.*)$")
_VALUE = re.compile(
    r" value: <\d+ ([\w.\-]+)(\{[\d,]*\})?(?: \(phi\))? @\d+> \(size=(\d+),offset=(\d+)\): (.*)$"
)
_COLOUR = re.compile(r"\bcolor (\d+)")
_SHAPE = re.compile(r"([a-z]+[0-9]*[a-z0-9]*)\[([0-9,]*)\]")


class Buffer(Struct, frozen=True):
    """One piece of HBM of one device: `bytes` as allocated, `needed` without padding. `what` is the argument
    or the operation that it holds, `source` the line of the user's code."""

    bytes: int
    needed: int
    shape: str
    what: str
    source: str = ""
    argument: bool = False

    @property
    def padded(self) -> bool:
        return self.needed > 0 and self.bytes >= PADDED * self.needed


def largest_buffers(text: str, module: HloModule, file: str, *, most: int = 8) -> list[Buffer]:
    """The largest buffers in HBM, one for each place in memory, from the `buffer-assignment` of XLA's dump.
    `file` is the user's."""
    best: dict[tuple[int, int], Buffer] = {}
    given = {each.name for each in module.computations.get(module.entry, ()) if each.opcode == "parameter"}
    number, argument, hbm = 0, False, False
    for line in text.splitlines():
        if found := _ALLOCATION.match(line):
            number += 1
            colour = _COLOUR.search(found[2])
            hbm = colour is None or colour[1] == "0"
            argument = "parameter" in found[2]
        elif hbm and (found := _VALUE.match(line)):
            size, place = int(found[3]), (number, int(found[4]))
            before = best.get(place)
            # Where an argument is donated, later values of its size lie at its place, too.
            own = argument and found[1] in given
            if before is None or size > before.bytes or (own and size == before.bytes):
                best[place] = _buffer(found[1], size, found[5], module, file, argument=argument)
    return sorted(best.values(), key=lambda each: -each.bytes)[:most]


def _buffer(name: str, size: int, layout: str, module: HloModule, file: str, *, argument: bool) -> Buffer:
    shapes = _SHAPE.findall(layout)
    needed = shape_bytes(*shapes[0]) if len(shapes) == 1 else 0
    shape = f"{shapes[0][0]}[{shapes[0][1]}]" if len(shapes) == 1 else "tuple"
    found = module.find(name)
    what = (op_name(found) if found else "") or name
    source = module.source(found, file) if found is not None and not argument else ""
    return Buffer(size, needed, shape, what, source, argument)


def padding(buffers: Sequence[Buffer], hbm_bytes: int) -> list[Buffer]:
    """Those that waste a part of the HBM that is worth a word."""
    return [each for each in buffers if each.padded and each.bytes - each.needed >= PADDED_SHARE * hbm_bytes]
