"""One lease per slice and per disk, so that two commands do not act on it at once.

A lease is a document `leases/NAME` with its holder, its expiry by the store's own clock and a fencing counter
that grows with every acquisition; hosts refuse a lower counter. A release leaves a tombstone that keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from tpuctl.engine.services import Services
from tpuctl.errors import LeaseHeldError, StaleRecordError
from tpuctl.model.timeouts import LEASE_TTL_S
from tpuctl.state.repository import Repository


class Lease(Struct, frozen=True):
    """A lease of this process. `fence` is its counter."""

    name: str
    fence: int
    generation: int


class LeaseRecord(Struct, frozen=True):
    """What the store says of a lease."""

    owner: str
    expires: float
    fence: int


LEASES = Repository(LeaseRecord, "leases")


@contextmanager
def take_lease(services: Services, name: str) -> Iterator[Lease]:
    """Holds the lease of slice `name` for one step. Raises LeaseHeldError while another process holds it."""
    lease = acquire(services, name)
    try:
        yield lease
    finally:
        release(services, lease)


def renew(services: Services, lease: Lease) -> Lease:
    """The lease, from now on. Raises LeaseHeldError where it had expired and somebody else has it."""
    expires = services.store.now() + LEASE_TTL_S
    renewed = LeaseRecord(services.lease_owner, expires, lease.fence)
    try:
        written = LEASES.put(services, lease.name, renewed, lease.generation)
    except StaleRecordError as error:
        raise LeaseHeldError(f"another tpuctl has begun to work on {lease.name} meanwhile") from error
    return Lease(lease.name, lease.fence, written.generation)


def is_unbroken(services: Services, lease: Lease) -> bool:
    """Whether nobody had it since, even if it expired: who takes it later sees what is written by now."""
    return LEASES.generation(services, lease.name) == lease.generation


def acquire(services: Services, name: str) -> Lease:
    """Raises LeaseHeldError while another process has it."""
    last = LEASES.find(services, name)
    now = services.store.now()
    fence = 0
    if last is not None:
        holder, fence, expires = last.record.owner, last.record.fence, last.record.expires
        busy = holder and holder != services.lease_owner and now < expires
        if busy and services.process_alive(holder):
            raise LeaseHeldError(
                f"another tpuctl ({holder}) is at work on {name}",
                hint=f"wait up to {expires - now:.0f} s and try again",
                details={"holder": holder, "expires": expires},
            )
    mine = LeaseRecord(services.lease_owner, now + LEASE_TTL_S, fence + 1)
    try:
        written = LEASES.put(services, name, mine, 0 if last is None else last.generation)
    except StaleRecordError as error:
        raise LeaseHeldError(f"another tpuctl has just started to work on {name}") from error
    return Lease(name, fence + 1, written.generation)


def release(services: Services, lease: Lease) -> None:
    """Leaves it to the next."""
    # Where it had expired and somebody else took it, it is theirs now.
    LEASES.try_put(services, lease.name, LeaseRecord("", 0.0, lease.fence), lease.generation)
