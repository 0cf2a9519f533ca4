"""The contract of a data set: what a training program takes for granted, against what the data shows cheaply.

Of the contents only the beginning of one object is looked at. What that cannot show is stated, not checked, and
says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from tpuctl.config.schema import Decoder, Problem
from tpuctl.config.yaml_positions import Marked, MarkedMapping, Position
from tpuctl.datasets.samples import Sample
from tpuctl.errors import UsageError
from tpuctl.lib.options import Option
from tpuctl.model.receipt import DataCheck


def _check_digest(text: str) -> None:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise UsageError(f"{text!r} is no SHA-256", hint="64 digits as `tpuctl data receipt` shows them")


class Contract(Struct, frozen=True):
    """What a contract file may say."""

    columns: Annotated[
        tuple[str, ...],
        Option(
            "What each sample has: extensions in tar shards, json.KEY for a key.", examples=(("jpg", "json"),)
        ),
    ] = ()
    packing: Annotated[
        str, Option("How documents are put into rows, in words.", examples=("greedy, documents are cut",))
    ] = ""
    sequence_length: Annotated[int | None, Option("Tokens in a row.", minimum=1, examples=(2048,))] = None
    bos_token: Annotated[
        int | None, Option("The token with which each row begins.", minimum=0, examples=(50256,))
    ] = None
    dtype: Annotated[str, Option("Type of a token: uint16, int32, uint32 or int64.", examples=("uint16",))] = ""
    header_bytes: Annotated[int, Option("Bytes before the tokens of a .bin.", minimum=0, examples=(1024,))] = 0
    objects: Annotated[int | None, Option("How many objects or files.", minimum=0, examples=(42,))] = None
    bytes: Annotated[int | None, Option("How many bytes in all.", minimum=0, examples=(8400000000,))] = None
    digest: Annotated[
        str | None, Option("The digest of an earlier receipt.", check=_check_digest, examples=("9f86d081…",))
    ] = None
    probe: Annotated[
        tuple[str, ...],
        Option(
            "A command that prints the first batch of its host.",
            text=True,
            examples=(("python3", "first_batch.py"),),
        ),
    ] = ()
    distinct: Annotated[
        bool | None, Option("Whether first batches differ from host to host.", examples=(True,))
    ] = None

    def said(self) -> dict[str, Any]:
        """What it says, as plain data."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in plain.items() if value not in (None, "", []) and value != ()}


def parse_contract(marked: Marked | None) -> tuple[Contract | None, list[Problem]]:
    """The contract in a file, and all that is wrong with it by itself."""
    start = Position(1, 1)
    if not isinstance(marked, MarkedMapping):
        return None, [Problem(start, "must hold keys and values", "sequence_length: 2048")]
    decoder = Decoder()
    found = decoder.decode(Contract, marked, "contract", start)
    if found is None:
        return None, decoder.problems
    problems = [
        Problem(marked.keys.get(key, start), f"contract.{key} {why}", hint)
        for key, why, hint in _contradictions(found)
    ]
    return found, [*decoder.problems, *problems]


def _contradictions(contract: Contract) -> Iterator[tuple[str, str, str]]:
    if contract.dtype and contract.dtype not in WIDTHS:
        yield "dtype", f"{contract.dtype!r} is not known", f"one of: {', '.join(WIDTHS)}"
    if contract.distinct is not None and not contract.probe:
        yield "distinct", "needs a probe", "probe: [python3, first_batch.py]"


WIDTHS: Mapping[str, int] = {"uint16": 2, "int32": 4, "uint32": 4, "int64": 8}
"""Bytes of a token, by dtype; little-endian."""


Verdict = tuple[bool | None, str]


class DatasetSummary(Struct, frozen=True):
    """What is known of data without reading it: numbers of a listing, and the beginning of one object."""

    objects: int
    bytes: int
    digest: str
    sample: Sample | None = None


def check_contract(contract: Contract, seen: DatasetSummary) -> list[DataCheck]:
    """Each field that the contract states, in its order: met, not met, or only stated."""
    checks: Mapping[str, Callable[[Contract, DatasetSummary], Verdict]] = {
        "columns": _columns,
        "packing": lambda *_: (None, "nothing in the data says it"),
        "sequence_length": _sequence_length,
        "bos_token": _bos_token,
        "dtype": _dtype,
        "objects": lambda it, seen: _equal(it.objects, seen.objects),
        "bytes": lambda it, seen: _equal(it.bytes, seen.bytes),
        "digest": lambda it, seen: _equal(it.digest, seen.digest),
    }
    said = contract.said()
    return [DataCheck(name, *check(contract, seen)) for name, check in checks.items() if name in said]


def _equal(wanted: Any, found: Any) -> Verdict:
    return wanted == found, f"{found}" if wanted == found else f"{found} instead of {wanted}"


def _columns(contract: Contract, seen: DatasetSummary) -> Verdict:
    sample = seen.sample
    if sample is None or not sample.columns:
        return _unread(sample, "tar shard")
    missing = [name for name in contract.columns if name not in sample.columns]
    where = f"the first sample of {sample.name}"
    if missing and not sample.whole:
        return None, f"{where} is longer than what was read of it"
    if missing:
        has = ", ".join(filter(None, sample.columns)) or "no extension"
        return False, f"{where} has no {', '.join(missing)}; it has {has}"
    return True, where


def _unread(sample: Sample | None, what: str) -> Verdict:
    """Damaged data meets no contract; of what is merely of another kind nothing is known."""
    if sample is not None and sample.problem:
        return False, sample.problem
    return None, f"there is no {what}" if sample is None else f"{sample.name} is no {what}"


TOKENS = "file of tokens (.npy, or .bin with dtype)"


def _sequence_length(contract: Contract, seen: DatasetSummary) -> Verdict:
    sample, length = seen.sample, contract.sequence_length or 0
    if sample is None or sample.tokens is None:
        return _unread(sample, TOKENS)
    if sample.row is not None:
        return _equal(length, sample.row)
    rest = sample.tokens % length
    if rest:
        return (
            False,
            f"{sample.name} has {sample.tokens} tokens: {sample.tokens // length} rows and {rest} more",
        )
    return True, f"{sample.name} has {sample.tokens // length} whole rows"


def _bos_token(contract: Contract, seen: DatasetSummary) -> Verdict:
    sample = seen.sample
    if sample is None or sample.tokens is None:
        return _unread(sample, TOKENS)
    length = sample.row or contract.sequence_length
    if length is None:
        return None, "without sequence_length nobody knows where rows begin"
    starts = sample.row_starts(length)
    for number, token in enumerate(starts):
        if token != contract.bos_token:
            return False, f"row {number} of {sample.name} begins with {token} instead of {contract.bos_token}"
    return (True, f"the first {len(starts)} rows of {sample.name}") if starts else (None, "no row was read")


def _dtype(contract: Contract, seen: DatasetSummary) -> Verdict:
    sample = seen.sample
    if sample is None or sample.dtype is None:
        return _unread(sample, "file that says its dtype (.npy)")
    return _equal(contract.dtype, sample.dtype)
