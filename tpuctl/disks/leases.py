"""One lease per master: whoever copies, attaches, detaches, resizes, repairs or removes a disk, or a copy of
it, is alone with it.

A lease lasts for one step, and these commands take many. So it is renewed whenever the command waits, and
before it reads or changes anything else: one that was stopped for longer, as on a laptop that slept, finds out
that another one took over before it unmounts, thaws or deletes what is that one's by now.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from tpuctl.disks.make import find_record, get_record
from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.errors import LeaseHeldError, TpuctlError
from tpuctl.lib.names import check_disk_name
from tpuctl.model.timeouts import LEASE_TTL_S
from tpuctl.model.verdict import Done
from tpuctl.state.leases import Lease, acquire, release, renew

Command = TypeVar("Command", bound=Callable[..., Any])

PORTS = frozenset({"cloud", "disks", "remote", "store"})
AT_ONCE_S = 0.5
"""A lease that took longer was somebody else's: what was planned before it is planned again."""
WAIT_S = 1800.0
"""Where a command sets no limit: a restore under way takes minutes, and ends."""


class _Clock:
    """The clock of a command that has a lease: it renews that lease while it waits."""

    def __init__(self, leased: _Leased) -> None:
        self._leased = leased

    def now(self) -> float:
        return self._leased.inner.clock.now()

    def sleep(self, seconds: float) -> None:
        self._leased.inner.clock.sleep(seconds)
        self._leased.renew()


class _Guarded:
    """A port of a command that has a lease: renewed before each call, if it is time."""

    def __init__(self, inner: Any, renew: Callable[[], None]) -> None:
        self._inner = inner
        self._renew = renew

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*words: Any, **more: Any) -> Any:
            # Who has lost its lease still lets go of what else it has; nothing is done under that before this.
            if not (words and str(words[0]).startswith("leases/")):
                self._renew()
            return found(*words, **more)

        return call


class _Leased:
    """Services of a command that has the lease of a master."""

    def __init__(self, inner: Services, master: str, lease: Lease, taken_at: float, waited: bool) -> None:
        self.inner = inner
        self.master = master
        self.lease = lease
        self.waited = waited
        self.clock = _Clock(self)
        self._renewed = taken_at

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return _Guarded(found, self.renew) if name in PORTS else found

    def renew(self) -> None:
        """Raises TpuctlError where another command had it meanwhile: nothing is as it was seen."""
        now = self.inner.store.now()
        if now - self._renewed <= LEASE_TTL_S / 3:
            return
        try:
            self.lease = renew(self.inner, self.lease)
        except LeaseHeldError as error:
            slept = f"this command did nothing for {now - self._renewed:.0f} s, as on a laptop that slept"
            why = f"{slept}, and another tpuctl has worked on disk {self.master} meanwhile: it ends here"
            raise TpuctlError(why, hint="tpuctl disk ls shows what there is; then type it again") from error
        self._renewed = now


@contextmanager
def lease_master(
    services: Services, master: str, *, deadline: float | None = None, waits: bool = True
) -> Iterator[Services]:
    """The same services, while no other command is at work on this master. Waits until the other one has ended,
    or, where it may not, raises LeaseHeldError. Within a command that has the lease it is had already."""
    if isinstance(services, _Leased) and services.master == master:
        yield cast("Services", services)
        return
    taken: list[tuple[Lease, float]] = []
    began = services.clock.now()

    def step() -> Outcome:
        before = services.store.now()
        taken.append((acquire(services, f"disks/{master}"), before))
        return Outcome(Done(), acted=False)

    if waits:
        limit = services.clock.now() + WAIT_S if deadline is None else deadline
        converge(services, f"disk {master}", step, deadline=limit)
    else:
        step()
    leased = _Leased(services, master, *taken[-1], waited=services.clock.now() > began + AT_ONCE_S)
    try:
        yield cast("Services", leased)
    finally:
        release(services, leased.lease)


@contextmanager
def lease_masters(services: Services, disks: Collection[str]) -> Iterator[Services]:
    """Those of several disks, for a pass: it does not wait."""
    with ExitStack() as stack:
        for master in sorted({master_of(services, each) for each in disks}):
            services = stack.enter_context(lease_master(services, master, waits=False))
        yield services


def has_waited(services: Services) -> bool:
    """Whether another command was at work on the master before this one began."""
    return isinstance(services, _Leased) and services.waited


def master_of(services: Services, disk: str) -> str:
    found = find_record(services, disk)
    return found.master if found is not None else disk


def alone_with_disk(command: Command) -> Command:
    """A command on one disk, its first argument of text, becomes alone with the master of that. What only says
    what it would do needs no lease. Raises NotFoundError for a disk that there is no record of, which gets no
    lease: that would be kept for ever."""

    @wraps(command)
    def alone(services: Services, *words: Any, **more: Any) -> Any:
        if more.get("dry_run"):
            return command(services, *words, **more)
        name = next(each for each in words if isinstance(each, str))
        master = get_record(services, check_disk_name(name, made=True)).master
        with lease_master(services, master, deadline=more.get("deadline")) as held:
            return command(held, *words, **more)

    return cast("Command", alone)
