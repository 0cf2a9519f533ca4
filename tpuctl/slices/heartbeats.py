"""What the hosts' own heartbeats say of hosts that do not answer, read from pass to pass.

Read only where a slice is in doubt, one call per node, and not more often than `BEAT_READ_GAP_S`. What was read
is kept beside the slice, so that the next pass, on whatever machine, can tell whether it moved.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.errors import RateLimitedError, TpuctlError, TransientError
from tpuctl.lib.names import node_names
from tpuctl.lib.text import fold_workers
from tpuctl.model.attempts import Cause
from tpuctl.model.hosts import Api
from tpuctl.model.records import Incarnation, RunRecord, SliceRecord
from tpuctl.slices.liveness import Heartbeats, Liveness, classify_heartbeats, count_read, due
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import Repository, list_runs

HOST_BEATS = Repository(Heartbeats, "host-beats")


def check_liveness(
    services: Services, record: SliceRecord, silent: Collection[int], *, others_answer: bool
) -> Liveness:
    """What the heartbeats of the `silent` workers of a slice amount to, after one more read if it is time.

    They stand still also where a supervisor was killed and left its last one behind: that says something of the
    host only while a run is known that would have it beat.
    """
    incarnation = record.incarnation
    if incarnation is None:
        return Liveness.UNKNOWN
    stored = HOST_BEATS.find(services, record.name)
    known, generation = (None, 0) if stored is None else (stored.record, stored.generation)
    heartbeats = _read_again(services, record, incarnation, known)
    if heartbeats is None:
        return Liveness.UNKNOWN
    liveness = classify_heartbeats(heartbeats, silent, others_answer=others_answer)
    if liveness is Liveness.STILL and not _expected(services, record.name, incarnation):
        liveness = Liveness.UNKNOWN
    recorded = heartbeats.recorded
    if liveness not in (recorded, Liveness.UNKNOWN):
        heartbeats = replace(heartbeats, recorded=liveness)
    if heartbeats is not known and not HOST_BEATS.try_put(services, record.name, heartbeats, generation):
        return liveness  # another machine has just counted its own read, and tells of it
    if heartbeats.recorded is not recorded:
        reason = f"no answer over SSH from worker {fold_workers(silent)}; {describe_liveness(liveness)}"
        record_decision(services, record.key, "heartbeat", reason, incarnation=incarnation.cloud_name)
    return liveness


def forget_heartbeats(services: Services, slice_name: str) -> None:
    """Removes what was read, with the slice."""
    HOST_BEATS.delete(services, slice_name)


def describe_liveness(liveness: Liveness) -> str:
    """What the heartbeats say, in words."""
    return {
        Liveness.UNKNOWN: "they publish no heartbeat that would tell",
        Liveness.MOVING: "their heartbeats move: the hosts live, it is this machine that does not reach them",
        Liveness.STILL: "their heartbeats have stood still since",
    }[liveness]


def _expected(services: Services, slice_name: str, incarnation: Incarnation) -> bool:
    """Whether a run was started on this incarnation whose end nobody saw: its supervisors should beat."""
    return any(_end_unseen(run, incarnation) for run in list_runs(services) if run.slice_name == slice_name)


def _end_unseen(run: RunRecord, incarnation: Incarnation) -> bool:
    """An attempt that is over because its hosts were lost counts, too, until they have answered again; when the
    run was over, perhaps long after that, says nothing of them."""
    attempt = run.attempt
    if attempt is None or attempt.incarnation != incarnation.number or attempt.started_at is None:
        return False
    if attempt.cause is None:
        return not run.state.final
    lost_at = attempt.ended_at or attempt.ending_since or 0.0
    return attempt.cause is Cause.HOST_LOST and lost_at > (incarnation.ready_at or 0.0)


def _read_again(
    services: Services, record: SliceRecord, incarnation: Incarnation, known: Heartbeats | None
) -> Heartbeats | None:
    """`known` with one more read, or as it is where it is too early or the API cannot be read now."""
    now = services.store.now()
    current = known is not None and known.incarnation == incarnation.cloud_name
    if current and not due(known, now):
        return known
    try:
        values = _read_all(services, record, incarnation)
    except (TransientError, RateLimitedError):
        return known if current else None
    return count_read(known, incarnation.cloud_name, values, now)


def _read_all(services: Services, record: SliceRecord, incarnation: Incarnation) -> Mapping[int, str]:
    """The heartbeats by worker, those of a multislice counted through; none where guest attributes are off."""
    names = node_names(incarnation.cloud_name, record.spec.slices)
    by_name = _by_name(incarnation) if record.spec.api is Api.COMPUTE else {}
    hosts_each = len(incarnation.workers) // len(names)
    values: dict[int, str] = {}
    for part, name in enumerate(names):
        try:
            found = services.tpus(record.spec.api).list_host_heartbeats(record.spec.zone, name)
        except (TransientError, RateLimitedError):
            raise
        except TpuctlError:
            continue  # turned off, or not for this caller to read
        values |= {by_name.get(worker, part * hosts_each + worker): value for worker, value in found.items()}
    return values


def _by_name(incarnation: Incarnation) -> Mapping[int, int]:
    """The workers of a group in the order of their names, in which the cloud tells of them."""
    names = sorted((worker.endpoint.instance, number) for number, worker in enumerate(incarnation.workers))
    return {position: number for position, (_, number) in enumerate(names)}
