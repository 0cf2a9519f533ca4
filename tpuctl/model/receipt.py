"""The receipt of data: which objects or files a run reads, by digest, and what their contract says of them.

The same data under the same contract make the same receipt, whoever asks: no times, no names of people.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from tpuctl.errors import UsageError
from tpuctl.lib.codec import from_data, parse_json, to_data

SCHEMA = "tpuctl.data-receipt/1"


class DataDigest(Struct, frozen=True):
    """`of` is `listing` (name, generation, crc32c and size of each object) or `tree` (name, size and time of
    change in nanoseconds of each file); contents are not read."""

    value: str
    of: str
    alg: str = "sha256"


class DataCheck(Struct, frozen=True):
    """One field of a contract: `met` by the data or not; None where it is only stated."""

    field: str
    met: bool | None
    detail: str

    @property
    def result(self) -> str:
        """For people."""
        return "stated" if self.met is None else "met" if self.met else "not met"


class Receipt(Struct, frozen=True):
    """What data was. `uri` is as it was asked for; `path` where a tree lies on its hosts. `sha256` covers
    everything else."""

    uri: str
    kind: str
    """`gcs` or `disk`."""
    digest: DataDigest
    objects: int
    bytes: int
    generation_max: int | None = None
    path: str = ""
    sample: str = ""
    """The object or file of which the beginning was read."""
    contract: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[DataCheck, ...] = ()
    schema: str = SCHEMA
    sha256: str = ""


def receipt_name(uri: str) -> str:
    """Under which the store has the newest receipt of a URI, which has letters that a key cannot have."""
    return hashlib.sha256(uri.encode()).hexdigest()[:32]


def sealed(receipt: Receipt) -> Receipt:
    """The receipt with its own digest."""
    return replace(receipt, sha256=_own_digest(receipt))


def _own_digest(receipt: Receipt) -> str:
    plain = to_data(replace(receipt, sha256=""))
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()


def parse_receipt(content: bytes, what: str) -> Receipt:
    """The receipt in a file. Raises UsageError for what is none, for one that was changed, and for one of a
    newer schema."""
    again = "tpuctl data receipt URI --contract FILE --json > receipt.json"
    try:
        data = parse_json(content)
        if not isinstance(data, dict) or "schema" not in data:
            raise ValueError("it has no schema")
        if data["schema"] != SCHEMA:
            raise UsageError(f"{what} is of schema {data['schema']!r}, not {SCHEMA}", hint=again)
        found = from_data(Receipt, data)
    except ValueError as error:
        raise UsageError(f"{what} is no receipt of data: {error}", hint=again) from error
    if found.sha256 != _own_digest(found):
        raise UsageError(f"{what} was changed after it was written", hint=again)
    return found


def difference(receipt: Receipt, now: Receipt) -> str:
    """In what data is not as its receipt says, in words; empty where it is the same."""
    if receipt.digest == now.digest:
        return ""
    rows = [("objects", receipt.objects, now.objects), ("bytes", receipt.bytes, now.bytes)]
    changed = [f"{new} {what} instead of {old}" for what, old, new in rows if old != new]
    return ", ".join(changed) or "as many objects and bytes, but not the same ones"
