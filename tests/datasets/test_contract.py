"""Contracts of data against what the beginning of one object shows: met, not met, or only stated."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from typing import Any

import pytest
from msgspec.structs import replace

from tpuctl.config.yaml_positions import parse_marked
from tpuctl.datasets.contract import Contract, DatasetSummary, check_contract, parse_contract
from tpuctl.datasets.receipt import listing_digest
from tpuctl.datasets.samples import HEAD, choose_sample, read_sample
from tpuctl.errors import UsageError
from tpuctl.lib.codec import to_data
from tpuctl.lib.options import registry
from tpuctl.model.cloud import ObjectInfo
from tpuctl.model.receipt import DataDigest, Receipt, difference, parse_receipt, sealed

BOS = 50256


def a_tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as shard:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            shard.addfile(info, io.BytesIO(content))
    return out.getvalue()


def tokens(rows: int, length: int, *, first: int = BOS, layout: str = "H") -> bytes:
    return struct.pack(f"<{rows * length}{layout}", *([first, *range(1, length)] * rows))


def an_npy(shape: str, content: bytes, *, descr: str = "<u2") -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + content


SHARD = a_tar(
    {"a/1.jpg": b"x", "a/1.json": json.dumps({"text": "hello", "label": 1}).encode(), "a/2.jpg": b"y"}
)
ROWS = an_npy("(3, 8)", tokens(3, 8))
LONG = a_tar({"1.mp4": b"x" * (2 * HEAD), "1.json": b"{}"})


def check(name: str, content: bytes, **contract: Any) -> dict[str, tuple[bool | None, str]]:
    said = Contract(**contract)
    sample = read_sample(name, len(content), content[:HEAD], dtype=said.dtype, header_bytes=said.header_bytes)
    found = check_contract(said, DatasetSummary(3, 100, "0" * 64, sample))
    return {each.field: (each.met, each.detail) for each in found}


@pytest.mark.parametrize(
    ("name", "content", "contract", "met", "said"),
    [
        ("s.tar", SHARD, {"columns": ("jpg", "json")}, True, "the first sample of s.tar"),
        ("s.tar", SHARD, {"columns": ("jpg", "json.text")}, True, "the first sample"),
        ("s.tar", SHARD, {"columns": ("png", "json.score")}, False, "has no png, json.score; it has jpg, json"),
        ("s.tar", LONG, {"columns": ("mp4",)}, True, "the first sample"),
        ("s.tar", LONG, {"columns": ("mp4", "json")}, None, "longer than what was read"),
        ("s.tar", b"no tar" * 200, {"columns": ("jpg",)}, False, "is no tar file"),
        ("s.npy", ROWS, {"columns": ("jpg",)}, None, "s.npy is no tar shard"),
        ("s.npy", ROWS, {"sequence_length": 8}, True, "8"),
        ("s.npy", ROWS, {"sequence_length": 16}, False, "8 instead of 16"),
        ("s.npy", ROWS, {"bos_token": BOS}, True, "the first 3 rows"),
        ("s.npy", ROWS, {"bos_token": 1}, False, f"row 0 of s.npy begins with {BOS} instead of 1"),
        ("s.npy", ROWS, {"dtype": "uint16"}, True, "uint16"),
        ("s.npy", an_npy("(2,)", b"\0" * 8, descr="<f4"), {"dtype": "uint16"}, False, "<f4 instead of"),
        ("s.npy", ROWS[:-2], {"sequence_length": 8}, False, "not as long as its header says"),
        ("s.npy", b"\x93NUMPY\x01\x00", {"sequence_length": 8}, False, "is no .npy file"),
        ("s.npy", an_npy("(24,)", tokens(3, 8)), {"sequence_length": 8}, True, "3 whole rows"),
        ("s.npy", an_npy("(24,)", tokens(3, 8)), {"sequence_length": 7}, False, "3 rows and 3 more"),
        ("s.npy", an_npy("(24,)", tokens(3, 8)), {"bos_token": 5}, None, "without sequence_length"),
        ("s.bin", tokens(4, 8), {"sequence_length": 8, "dtype": "uint16"}, True, "4 whole rows"),
        ("s.bin", tokens(4, 8) + b"x", {"sequence_length": 8, "dtype": "uint16"}, False, "within a token"),
        ("s.bin", tokens(4, 8), {"sequence_length": 8}, None, "s.bin is no file of tokens"),
        ("notes.txt", b"", {"packing": "greedy"}, None, "nothing in the data says it"),
        ("s.bin", b"", {"objects": 3}, True, "3"),
        ("s.bin", b"", {"bytes": 99}, False, "100 instead of 99"),
        ("s.bin", b"", {"digest": "1" * 64}, False, "instead of 1111"),
    ],
)
def test_a_field_is_met_or_not_or_only_stated(
    name: str, content: bytes, contract: dict[str, Any], met: bool | None, said: str
) -> None:
    found = check(name, content, **contract)[next(iter(contract))]
    assert found[0] is met
    assert said in found[1]


def test_rows_of_raw_tokens_are_checked_where_the_contract_says_how_they_lie() -> None:
    said = {"sequence_length": 8, "bos_token": BOS, "dtype": "int32", "header_bytes": 16}
    good = b"h" * 16 + tokens(4, 8, layout="i")
    assert check("s.bin", good, **said)["bos_token"] == (True, "the first 4 rows of s.bin")
    shifted = b"h" * 16 + tokens(4, 8, layout="i")[4:] + b"\0\0\0\0"
    assert check("s.bin", shifted, **said)["bos_token"][0] is False


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sequence_lenght: 8", "did you mean 'sequence_length'?"),
        ("sequence_length: long", "contract.sequence_length must be a whole number, not long"),
        ("columns: jpg", "contract.columns must be a list"),
        ("dtype: float16", "contract.dtype 'float16' is not known"),
        ("digest: abc", "is no SHA-256"),
        ("distinct: true", "contract.distinct needs a probe"),
        ("- a", "must hold keys and values"),
    ],
)
def test_what_is_wrong_with_a_contract_is_said_at_its_key(text: str, said: str) -> None:
    _, problems = parse_contract(parse_marked(text, "contract.yaml"))
    assert any(said in problem.message for problem in problems)


def test_a_contract_has_every_key_and_keeps_what_it_says() -> None:
    text = (
        "columns: [jpg]\npacking: greedy\nsequence_length: 8\nbos_token: 0\ndtype: int32\nheader_bytes: 4\n"
        f"objects: 0\nbytes: 1\ndigest: {'a' * 64}\nprobe: [python3, first.py, 3]\ndistinct: false\n"
    )
    found, problems = parse_contract(parse_marked(text, "contract.yaml"))
    assert (problems, set(found.said() if found else {})) == ([], set(registry(Contract)))


def an_object(name: str, generation: int = 1, size: int = 5, crc32c: str = "AAAAAA==") -> ObjectInfo:
    return ObjectInfo(name, generation, size, crc32c=crc32c)


def test_a_listing_has_another_digest_whatever_of_it_changes() -> None:
    plain = {"a": an_object("a"), "b": an_object("b")}
    others = [
        {"a": an_object("a")},
        {**plain, "b": an_object("b", generation=2)},
        {**plain, "b": an_object("b", size=6)},
        {**plain, "b": an_object("b", crc32c="BBBBBB==")},
        {"a": an_object("a"), "c": an_object("c")},
    ]
    assert listing_digest(plain) == listing_digest(dict(reversed(plain.items())))
    assert len({listing_digest(each) for each in (plain, *others)}) == len(others) + 1
    assert choose_sample(["z.tar", "readme.md", "b.npy"]) == "b.npy"


RECEIPT = sealed(Receipt("gs://b/p", "gcs", DataDigest("0" * 64, "listing"), 3, 100, contract={"objects": 3}))


def test_a_receipt_comes_back_and_a_changed_one_is_refused() -> None:
    content = json.dumps(to_data(RECEIPT)).encode()
    assert parse_receipt(content, "r.json") == RECEIPT
    for bad, said in [
        (content.replace(b'"objects": 3, "bytes"', b'"objects": 4, "bytes"'), "was changed"),
        (content.replace(b"receipt/1", b"receipt/2"), "is of schema"),
        (content[:-9], "is no receipt"),
        (b"[]", "is no receipt"),
        (b'{"schema": "tpuctl.data-receipt/1"}', "is no receipt"),
    ]:
        with pytest.raises(UsageError, match=said):
            parse_receipt(bad, "r.json")


def test_what_changed_since_a_receipt_is_said_in_numbers() -> None:
    other = DataDigest("1" * 64, "listing")
    assert difference(RECEIPT, replace(RECEIPT, contract={})) == ""
    assert difference(RECEIPT, replace(RECEIPT, digest=other, objects=4)) == "4 objects instead of 3"
    assert difference(RECEIPT, replace(RECEIPT, digest=other)).startswith("as many objects and bytes")
