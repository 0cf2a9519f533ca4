"""What the text of a program that libtpu compiled for a v6e-8 says: a scan of 8 layers with checkpointing."""

from __future__ import annotations

import pytest

from tests.support.session import ROOT
from tpuctl.preflight.buffers import Buffer, largest_buffers, padding
from tpuctl.preflight.hlo import count_collectives, parse_module, shape_bytes

DATA = ROOT / "tests" / "data" / "preflight"
TEXT = (DATA / "scan_v6e-8.hlo").read_text(encoding="utf-8")
BUFFERS = (DATA / "scan_v6e-8.buffers.txt").read_text(encoding="utf-8")
FILE = "/home/me/step.py"
MIB = 1 << 20


def test_collectives_count_as_often_as_their_loop_turns():
    rows, unknown = count_collectives(parse_module(TEXT))
    assert unknown == 0
    assert {(row.kind, row.count, row.bytes) for row in rows} == {
        ("all-gather", 16, 16 * 8 * MIB),  # forwards and backwards, 8 layers of 2048 x 2048 in bfloat16
        ("reduce-scatter", 8, 8 * 8 * MIB),
        ("all-reduce", 1, 4),  # the loss
    }


def test_a_loop_whose_trips_nobody_knows_counts_once():
    text = TEXT.replace("direction=LT", "direction=NE")
    rows, unknown = count_collectives(parse_module(text))
    assert unknown == 2
    assert {row.kind: row.count for row in rows} == {"all-gather": 2, "reduce-scatter": 1, "all-reduce": 1}


def test_an_instruction_leads_to_the_line_of_the_users_code():
    module = parse_module(TEXT)
    gather = module.find("all-gather.8")
    assert gather is not None
    assert module.source(gather, FILE) == "step.py:14"
    assert module.find("no-such-instruction") is None


def test_the_largest_buffers_are_those_in_hbm():
    found = largest_buffers(BUFFERS, parse_module(TEXT), FILE, most=2)
    assert [(each.bytes, each.shape, each.what, each.argument) for each in found] == [
        (8 * MIB, "bf16[8,2048,256]", "w", True),
        (MIB // 4, "bf16[64,2048]", "x", True),
    ]


def test_padding_is_told_where_it_is_a_part_of_the_memory():
    wide = Buffer(1 << 30, 1 << 23, "f32[1048576,1]", "x", "a.py:3")
    small = Buffer(1 << 20, 1 << 13, "f32[1024,1]", "y")
    assert padding([wide, small, Buffer(1 << 30, 1 << 30, "f32[8,128]", "z")], 16 << 30) == [wide]


@pytest.mark.parametrize(
    ("kind", "dims", "size"),
    [
        ("bf16", "8,128", 2048),
        ("f32", "", 4),
        ("pred", "3", 3),
        ("s4", "3", 2),
        ("f8e4m3fn", "10", 10),
        ("token", "", 0),
    ],
)
def test_bytes_of_shapes(kind, dims, size):
    assert shape_bytes(kind, dims) == size
