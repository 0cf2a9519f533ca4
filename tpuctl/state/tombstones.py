"""Names whose records an older tpuctl removed, 90 days after the slice was gone. Today such records stay.

One document keeps what must never be used again: the number of the last incarnation, because names in the cloud
are not used twice, and the fence of the lease, because hosts refuse a lower one.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from tpuctl.engine.ports import Store
from tpuctl.state.repository import decode

KEY = "retired"


class Numbers(Struct, frozen=True):
    """Where counting goes on when a name comes back: the last incarnation, and the fence of its lease."""

    incarnation: int = 0
    fence: int = 0


class Retired(Struct, frozen=True):
    """The numbers of all slices whose records were removed."""

    numbers: Mapping[str, Numbers] = field(default_factory=dict)


def retired_numbers(store: Store, name: str) -> Numbers:
    """Where a slice whose record, or lease, was just found missing goes on counting."""
    document = store.get(KEY)
    return Numbers() if document is None else decode(Retired, document).numbers.get(name, Numbers())
