"""Brings the hosts of a slice to what a command asks of their disks or mounts, by the loop of provisioning."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.errors import ConflictError, PartialError, TransientError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.provision import (
    PATIENCE_ALONE_S,
    UNSEEN,
    Failures,
    Kind,
    Provisioned,
    Unanswered,
    provision,
)
from tpuctl.hosts.targets import host_targets
from tpuctl.model.records import Desired, SliceRecord
from tpuctl.model.verdict import Done, Failed, Verdict, Wait
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import get_slice
from tpuctl.transfer.prepare import deliver_files

TRIES = 3
"""A device may appear some seconds after its attachment; what failed so often fails."""
LIMIT_S = 1800.0
"""Where a command sets no limit: an installation alone waits 15 min for the package lock of the boot."""


def bring_hosts(
    services: Services,
    record: SliceRecord,
    kinds: Sequence[Kind],
    *,
    workers: Collection[int] = (),
    deadline: float | None = None,
    unseen: bool = False,
) -> tuple[Mapping[str, str], ...]:
    """Until every host (or some) is as `kinds` ask; what each says of it. Raises PartialError for what cannot
    be, TpuctlError for what only a person can change, PendingError once `deadline` (epoch seconds) passed.

    `unseen` begins at once: for what no host can have yet, such as a disk that was attached just now. That is
    one call of each host instead of two, and what stands in the way is found all the same, by its job."""
    agent = HostAgent(services.remote, services.agent_source)
    targets = [each for each in host_targets(services, record) if not workers or each.worker in workers]
    rows: list[tuple[Mapping[str, str], ...]] = [()]
    told = [UNSEEN for _ in targets] if unseen else []

    def step() -> Outcome:
        with take_lease(services, record.name) as held:
            found = provision(
                agent,
                targets,
                lambda _: kinds,
                slice_name=record.name,
                fence=held.fence,
                deliver=deliver_files(services, agent),
                patience_s=PATIENCE_ALONE_S,
                told=tuple(told),
            )
        told.clear()
        if isinstance(found, Provisioned):
            rows[0] = found.rows
            return Outcome(Done(), acted=False)
        if isinstance(found, Unanswered):
            _check_wanted(services, record)
            raise TransientError(f"worker {found.replies[0].worker} did not answer: {found.replies[0].message}")
        if isinstance(found, Failures):
            return Outcome(_judge(record.name, found), acted=False)
        return Outcome(found, acted=False)

    limit = services.clock.now() + LIMIT_S if deadline is None else deadline
    converge(services, record.name, step, deadline=limit)
    return rows[0]


def _check_wanted(services: Services, record: SliceRecord) -> None:
    """Raises ConflictError where the slice was taken down, or has other hosts, since this began: the old ones
    never answer again."""
    now = get_slice(services, record.name).record
    if now.desired is Desired.DOWN or now.last_incarnation != record.last_incarnation:
        why = f"{record.name} was taken down" if now.desired is Desired.DOWN else f"{record.name} has new hosts"
        raise ConflictError(
            f"{why} meanwhile", hint=f"tpuctl status {record.name}, then the same command again"
        )


def _judge(name: str, found: Failures) -> Verdict:
    worst = found.worst
    if not worst.permanent and worst.tries < TRIES:
        return Wait(f"{found.why}; it is tried again")
    details = {"workers": [each.worker for each in found.failures], "log": worst.log}
    return Failed(PartialError(found.why, hint=found.hint(name), details=details))
