"""Reservations: chips of one generation in a zone that are set aside for the project.

Nodes that ask for reserved capacity get it from there, and from nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.sim.status import ApiError, Code

if TYPE_CHECKING:
    from tpuctl.sim.kernel import Kernel, Node

ANY = "-"
"""Asks for any reservation of the project, as `gcloud … --reserved` does."""
_SHORTAGE = (
    "Insufficient reserved capacity. Contact customer support to increase your reservation. [EID: {eid}]"
)


@dataclass(frozen=True)
class Reservation:
    """`chips` of `generation`, such as v4, in `zone`."""

    name: str
    zone: str
    generation: str
    chips: int


def wanted_reservation(spec: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    """The reservation that a node spec or its queued resource asks for; "-" for any, "" for none."""
    scheduling = spec.get("schedulingConfig") or {}
    named = request.get("reservationName") or scheduling.get("reservationName")
    if named:
        return str(named).rsplit("/", 1)[-1]
    reserved = scheduling.get("reserved") or (request.get("guaranteed") or {}).get("reserved")
    return ANY if reserved else ""


class Reservations:
    """Those of one world; every method expects the world's lock to be held."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], Reservation] = {}
        """(zone, name) → reservation."""

    def used(self, kernel: Kernel, reservation: Reservation) -> int:
        """Chips of a reservation that nodes hold."""
        return sum(
            node.offer.chips
            for node in kernel.nodes.values()
            if node.reservation == reservation.name
            and node.path.zone == reservation.zone
            and not node.preempted
        )

    def take(self, kernel: Kernel, node: Node, wanted: str) -> ApiError | None:
        """Gives `node` chips of the reservation called `wanted`, or of any; the error when too few are left."""
        for reservation in self.found.values():
            right = (reservation.zone, reservation.generation) == (node.path.zone, node.offer.generation)
            if not right or wanted not in (ANY, reservation.name):
                continue
            if reservation.chips - self.used(kernel, reservation) >= node.offer.chips:
                node.reservation = reservation.name
                return None
        return ApiError(Code.FAILED_PRECONDITION, _SHORTAGE.format(eid=kernel.ids.eid()))
