"""Things that one host makes and the others of its slice copy, such as an environment.

The first host makes the thing and holds it ready; the others copy its contents by their sha256, which come from
that host's facts and not from a neighbour, and make the thing of them. Who cannot copy makes it itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from tpuctl.hosts.facts import FactsReply
from tpuctl.hosts.provision import Kind
from tpuctl.model.hosts import HostTarget
from tpuctl.transfer.lacking import Where


class Offer(Struct, frozen=True):
    """What a host holds ready of a thing for others: a tree of contents, as `render_tree` made it, the area in
    which they lie, and how much room a host needs that is to get them."""

    tree: bytes
    where: Where
    bytes_needed: int


@runtime_checkable
class Shareable(Kind, Protocol):
    """A kind that hosts can get from each other."""

    @property
    def shared(self) -> bool:
        """Whether it comes out the same on every host."""
        ...

    def lacks(self, facts: FactsReply) -> bool:
        """Whether it has to be made on this host."""
        ...

    def has_room(self, facts: FactsReply, offer: Offer) -> bool:
        """Whether what is offered fits onto this host, as far as that is known."""
        ...

    def offer(self, facts: FactsReply, lacking: Sequence[FactsReply]) -> Offer | None:
        """What this host holds ready for those that lack it; None where nothing fits all of them."""
        ...

    def offering(self) -> Shareable:
        """The same for a host that is to hold it ready for others."""
        ...

    def made_of(self, facts: FactsReply, lacking: Sequence[FactsReply]) -> Shareable:
        """The same for a host that has what the host with these `facts` offers."""
        ...


class SharingHost(Struct, frozen=True):
    """A host that offers a thing, and what it offers."""

    target: HostTarget
    facts: FactsReply
    offer: Offer


def find_source(
    kind: Shareable,
    facts: Mapping[int, FactsReply],
    targets: Sequence[HostTarget],
    lacking: Sequence[HostTarget],
) -> SharingHost | None:
    """A host that has what the others lack; None where none has. Pure."""
    wanting = [facts[target.worker] for target in lacking]
    for target in targets:
        found = facts[target.worker]
        if target not in lacking and (offer := kind.offer(found, wanting)) is not None:
            return SharingHost(target, found, offer)
    return None


def able_to_copy(
    kind: Shareable, offer: Offer, facts: Mapping[int, FactsReply], lacking: Sequence[HostTarget]
) -> list[HostTarget]:
    """Those that are not at work on anything, and have room. Pure."""
    idle = [each for each in lacking if not any(job.going for job in facts[each.worker].jobs or ())]
    return [each for each in idle if kind.has_room(facts[each.worker], offer)]
