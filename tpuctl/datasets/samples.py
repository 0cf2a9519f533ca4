"""What the beginning of one object of a data set shows: columns of a tar shard, rows of a file of tokens.

Tar shards are those of webdataset, `.npy` those of NumPy, `.bin` tokens one after the other. Everything else is
not understood, and says so.
"""

from __future__ import annotations

import ast
import io
import math
import struct
import tarfile
from collections.abc import Iterable, Mapping
from contextlib import suppress

from msgspec import Struct

from tpuctl.datasets.plan import sample_key
from tpuctl.lib.codec import parse_json

HEAD = 1 << 20
"""Bytes that are read of one object."""
ENDINGS = (".tar", ".npy", ".bin")
_FORMATS: Mapping[str, str] = {"uint16": "<H", "int32": "<i", "uint32": "<I", "int64": "<q"}
_DESCR: Mapping[str, str] = {"<u2": "uint16", "<i4": "int32", "<u4": "uint32", "<i8": "int64"}
"""Types in headers of NumPy (numpy.org/doc/stable/reference/generated/numpy.lib.format.html)."""
_NPY_MAGIC = b"\x93NUMPY"


class Sample(Struct, frozen=True):
    """One object, as far as its beginning was understood. `columns` are those of the first sample of a tar
    shard, `whole` if all of it was seen. `tokens` are all in a file, `row` how many a row has if the file says
    so, `body` the tokens that were read, of `dtype`."""

    name: str
    columns: tuple[str, ...] = ()
    whole: bool = False
    tokens: int | None = None
    row: int | None = None
    dtype: str | None = None
    body: bytes = b""
    layout: str = ""
    problem: str = ""

    def row_starts(self, length: int) -> list[int]:
        """The first token of each row of `length` of which something was read."""
        step, width = length * struct.calcsize(self.layout), struct.calcsize(self.layout)
        ends = range(0, len(self.body) - width + 1, step)
        return [struct.unpack_from(self.layout, self.body, at)[0] for at in ends]


def choose_sample(names: Iterable[str]) -> str | None:
    """The first name of a kind that is understood; None where there is none."""
    return min((name for name in names if name.endswith(ENDINGS)), default=None)


def read_sample(name: str, size: int, head: bytes, *, dtype: str = "", header_bytes: int = 0) -> Sample:
    """What `head`, the first bytes of an object of `size` bytes, shows. `dtype` and `header_bytes` are those of
    the contract, for a `.bin`, which does not say them."""
    if name.endswith(".tar"):
        return _read_tar(name, head)
    if name.endswith(".npy"):
        return _read_npy(name, size, head)
    if name.endswith(".bin") and dtype in _FORMATS:
        layout = _FORMATS[dtype]
        tokens, rest = divmod(max(0, size - header_bytes), struct.calcsize(layout))
        problem = f"{name} ends within a token of {dtype}" if rest else ""
        found = Sample(name, body=head[header_bytes:], layout=layout, problem=problem)
        return found if rest else Sample(name, tokens=tokens, body=found.body, layout=layout)
    return Sample(name)


def _read_tar(name: str, head: bytes) -> Sample:
    columns: dict[str, None] = {}
    key, whole = None, False
    try:
        with tarfile.open(fileobj=io.BytesIO(head), mode="r:") as shard:
            while (member := shard.next()) is not None:
                if not member.isfile():
                    continue
                if key is not None and sample_key(member.name) != key:
                    whole = True
                    break
                key = sample_key(member.name)
                extension = member.name[len(key) + 1 :]
                columns |= dict.fromkeys([extension, *_keys(shard, member, extension)])
            else:
                whole = True
    except tarfile.TarError as error:
        if not columns:
            return Sample(name, problem=f"{name} is no tar file: {error}")
    return Sample(name, columns=tuple(columns), whole=whole)


def _keys(shard: tarfile.TarFile, member: tarfile.TarInfo, extension: str) -> list[str]:
    """The keys of a JSON object, as columns."""
    content = shard.extractfile(member) if extension == "json" else None
    if content is None:
        return []
    with suppress(ValueError, tarfile.TarError, OSError):
        found = parse_json(content.read())
        return [f"json.{key}" for key in found] if isinstance(found, dict) else []
    return []


def _read_npy(name: str, size: int, head: bytes) -> Sample:
    try:
        if not head.startswith(_NPY_MAGIC):
            raise ValueError("it does not begin like one")
        form, at = ("<H", 10) if head[6] == 1 else ("<I", 12)
        (length,) = struct.unpack_from(form, head, 8)
        header = ast.literal_eval(head[at : at + length].decode("latin-1"))
        shape, descr = tuple(header["shape"]), str(header["descr"])
        count = math.prod(shape)
    except (ValueError, SyntaxError, KeyError, IndexError, TypeError, struct.error) as error:
        return Sample(name, problem=f"{name} is no .npy file: {error}")
    dtype = _DESCR.get(descr)
    if dtype is None or header.get("fortran_order") or not shape:
        return Sample(name, dtype=dtype or descr, problem=f"{name} holds no rows of tokens ({descr})")
    layout = _FORMATS[dtype]
    if at + length + count * struct.calcsize(layout) != size:
        return Sample(name, dtype=dtype, problem=f"{name} is not as long as its header says")
    row = shape[-1] if len(shape) > 1 else None
    return Sample(name, tokens=count, row=row, dtype=dtype, body=head[at + length :], layout=layout)
