"""Reservations: chips of one generation in a zone that are set aside for the project.

Nodes that ask for reserved capacity get it from there, and from nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpuctl.sim.wire.status import ApiError, failed_precondition
from tpuctl.sim.world.state import Kernel, Machine, Reservation

ANY = "-"
"""Asks for any reservation of the project, as `gcloud … --reserved` does."""
_SHORTAGE = (
    "Insufficient reserved capacity. Contact customer support to increase your reservation. [EID: {eid}]"
)


def wanted_reservation(spec: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    """The reservation that a node spec or its queued resource asks for; "-" for any, "" for none."""
    scheduling = spec.get("schedulingConfig") or {}
    named = request.get("reservationName") or scheduling.get("reservationName")
    if named:
        return str(named).rsplit("/", 1)[-1]
    reserved = scheduling.get("reserved") or (request.get("guaranteed") or {}).get("reserved")
    return ANY if reserved else ""


def set_aside(kernel: Kernel, reservation: Reservation) -> None:
    """Makes or changes a reservation, or with 0 chips takes it away; under the world's lock."""
    kernel.reservations.pop((reservation.zone, reservation.name), None)
    if reservation.chips:
        kernel.reservations[reservation.zone, reservation.name] = reservation


def chips_used(kernel: Kernel, reservation: Reservation) -> int:
    """Chips of a reservation that nodes hold; under the world's lock, as `take_chips`."""
    there = (each for each in kernel.machines() if each.path.zone == reservation.zone)
    return sum(each.chips for each in there if each.reservation == reservation.name and each.holds_chips)


def take_chips(kernel: Kernel, node: Machine, wanted: str) -> ApiError | None:
    """Gives `node` chips of the reservation called `wanted`, or of any; the error when too few are left."""
    for reservation in kernel.reservations.values():
        right = (reservation.zone, reservation.generation) == (node.path.zone, node.generation)
        if not right or wanted not in (ANY, reservation.name):
            continue
        if reservation.chips - chips_used(kernel, reservation) >= node.chips:
            node.reservation = reservation.name
            return None
    return failed_precondition(_SHORTAGE.format(eid=kernel.ids.eid()))
