"""Brings the hosts of a slice to what is asked of their disks, by the loop of provisioning."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.errors import PartialError, TransientError
from tpuctl.hosts.agent import HostAgent
from tpuctl.hosts.provision import Failures, Kind, Provisioned, Unanswered, provision
from tpuctl.hosts.targets import host_targets
from tpuctl.model.hosts import Blob, HostTarget
from tpuctl.model.records import SliceRecord
from tpuctl.model.verdict import Done, Failed, Verdict, Wait
from tpuctl.state.leases import take_lease

TRIES = 3
"""A device may appear some seconds after its attachment; what failed so often fails."""


def bring_hosts(
    services: Services,
    record: SliceRecord,
    kinds: Sequence[Kind],
    *,
    workers: Collection[int] = (),
    deadline: float | None = None,
) -> tuple[Mapping[str, str], ...]:
    """Until every host (or some) is as `kinds` ask; what each says of it. Raises PartialError for what cannot
    be, TpuctlError for what only a person can change."""
    agent = HostAgent(services.remote, services.agent_source)
    targets = [each for each in host_targets(services, record) if not workers or each.worker in workers]
    rows: list[tuple[Mapping[str, str], ...]] = [()]

    def step() -> Outcome:
        with take_lease(services, record.name) as held:
            found = provision(
                agent,
                targets,
                lambda _: kinds,
                slice_name=record.name,
                fence=held.fence,
                deliver=_no_files,
            )
        if isinstance(found, Provisioned):
            rows[0] = found.rows
            return Outcome(Done(), acted=False)
        if isinstance(found, Unanswered):
            raise TransientError(f"worker {found.replies[0].worker} did not answer: {found.replies[0].message}")
        if isinstance(found, Failures):
            return Outcome(_judge(found), acted=False)
        return Outcome(found, acted=False)

    converge(services, record.name, step, deadline=deadline)
    return rows[0]


def _judge(found: Failures) -> Verdict:
    first = found.failures[0]
    if any(each.permanent or each.tries >= TRIES for each in found.failures):
        return Failed(
            PartialError(
                found.why, details={"workers": [each.worker for each in found.failures], "log": first.log}
            )
        )
    return Wait(found.why)


def _no_files(
    targets: Sequence[HostTarget], run: str, attempt: str, fence: int, files: Mapping[str, bytes | Blob]
) -> str:
    raise AssertionError(f"{run} {attempt} ({fence}) brings {sorted(files)} to worker {targets[0].worker}")
