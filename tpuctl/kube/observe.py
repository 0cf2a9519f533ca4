"""What JobSet, Kueue and the kubelets say of a run: one observation, as plain data. Pure.

A JobSet is a run, its restarts are attempts, a pod is a worker, a container with the program a process of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from tpuctl.hosts.protocol import WorkerState
from tpuctl.hosts.worker_status import ProcessStatus, WorkerStatus
from tpuctl.kube.jobset import RUN_LABEL
from tpuctl.kube.queues import condition, holds, is_waiting, waiting_reason
from tpuctl.lib.time import parse_timestamp
from tpuctl.model.clusters import ClusterRun

Object = Mapping[str, Any]
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_JOB_INDEX = "jobset.sigs.k8s.io/job-index"
_RESTART = "jobset.sigs.k8s.io/restart-attempt"
_POD_INDEX = "batch.kubernetes.io/job-completion-index"
_SIGNALLED = 128
"""Above that a container's exit status is that of a signal."""
_HOPELESS = {"InvalidImageName", "ErrImageNeverPull"}
_PULLS = {"ErrImagePull", "ImagePullBackOff"}
_NO_IMAGE = ("not found", "manifest unknown", "does not exist", "denied", "unauthorized", "forbidden")
"""What registries say of an image that is not there, or not for us: trying again is in vain."""
_IN_VAIN = ("CreateContainerConfigError",)
"""A Secret that is not there, or has not that key."""


class PodSeen(Struct, frozen=True):
    """A worker: its pod, and how the program there stands."""

    pod: str
    status: WorkerStatus
    node: str = ""
    stuck: str = ""
    """Why it does not begin."""
    hopeless: bool = False
    """It never will."""
    began: bool = False
    made_at: float | None = None
    placed_at: float | None = None
    """When it came to its node, whose chips it has from then on."""


class ClusterRunObservation(Struct, frozen=True):
    """What there is of a run on its cluster."""

    there: bool
    """Its JobSet, or one of that name."""
    uid: str = ""
    run: str = ""
    """Whose it is, by its label."""
    leaving: bool = False
    restarts: int = 0
    counted: int = 0
    ended: str = ""
    """`Completed` or `Failed`, and what JobSet says of it."""
    said: str = ""
    suspended: bool = False
    waits_for: str = ""
    """Why Kueue does not admit it."""
    pods: tuple[PodSeen, ...] = ()
    held_since: float | None = None
    """From when on it holds chips: admitted by Kueue, or with a pod on a node."""
    left_at: float | None = None
    """When it held no more: it was over, or suspended."""

    @property
    def made_at(self) -> float | None:
        """When the first pod of this attempt was made: all of the one before are gone then."""
        return min((each.made_at for each in self.pods if each.made_at is not None), default=None)

    @property
    def began_at(self) -> float | None:
        """When the last worker that runs began."""
        return max((each.started_at for each in self.workers if each.started_at is not None), default=None)

    @property
    def workers(self) -> tuple[WorkerStatus, ...]:
        return tuple(each.status for each in self.pods)

    @property
    def stuck(self) -> str:
        """Why pods do not begin: what is hopeless first, else what holds up the first of them."""
        held = sorted((each for each in self.pods if each.stuck), key=lambda each: not each.hopeless)
        return f"worker {held[0].status.worker}: {held[0].stuck}" if held else ""


NOTHING = ClusterRunObservation(there=False)


def observe(
    run: ClusterRun,
    jobset: Object | None,
    workloads: Sequence[Object],
    position: int | None,
    pods: Iterable[Object],
) -> ClusterRunObservation:
    """One observation. `workloads` are those of its namespace, `position` its place in the queue."""
    if jobset is None:
        return NOTHING
    meta, status = jobset["metadata"], jobset.get("status") or {}
    restarts = int(status.get("restarts") or 0)
    ended = next((kind for kind in ("Completed", "Failed") if holds(jobset, kind)), "")
    own = next((each for each in workloads if is_of(each, str(meta.get("uid") or ""))), None)
    rows = tuple(sorted(_pods(run, restarts, pods), key=lambda each: each.status.worker))
    return ClusterRunObservation(
        there=True,
        uid=str(meta.get("uid") or ""),
        run=str((meta.get("labels") or {}).get(RUN_LABEL) or ""),
        leaving=bool(meta.get("deletionTimestamp")),
        restarts=restarts,
        counted=int(status.get("restartsCountTowardsMax") or 0),
        ended=ended,
        said=str(condition(jobset, ended).get("message") or "") if ended else "",
        suspended=bool((jobset.get("spec") or {}).get("suspend")),
        waits_for=_admission(run, own, position),
        pods=rows,
        held_since=_held_since(own, rows),
        left_at=_left_at(jobset, own, ended, rows),
    )


def _held_since(own: Object | None, pods: Sequence[PodSeen]) -> float | None:
    if own is not None and holds(own, "Admitted"):
        return _changed(own, "Admitted")
    return min((each.placed_at for each in pods if each.placed_at is not None), default=None)


def _left_at(jobset: Object, own: Object | None, ended: str, pods: Sequence[PodSeen]) -> float | None:
    if ended:
        ends = [each.status.ended_at for each in pods if each.status.ended_at is not None]
        return _changed(jobset, ended) or max(ends, default=None)
    if own is not None and condition(own, "Admitted").get("status") == "False":
        return _changed(own, "Admitted")
    return _changed(jobset, "Suspended") if holds(jobset, "Suspended") else None


def _changed(found: Object, kind: str) -> float | None:
    """Since when a condition is as it is."""
    return parse_timestamp(str(condition(found, kind).get("lastTransitionTime") or ""))


def is_of(workload: Object, uid: str) -> bool:
    """Whether a Workload is for the JobSet of this uid."""
    return any(owner.get("uid") == uid for owner in workload["metadata"].get("ownerReferences") or ())


def _admission(run: ClusterRun, workload: Object | None, position: int | None) -> str:
    """Why it is not admitted yet; empty where it is, or nothing queues it."""
    if not run.queue:
        return ""
    if workload is None:
        return f"Kueue has not looked at it yet (queue {run.queue})"
    if not is_waiting(workload):
        return ""
    place = f"place {position} in queue {run.queue}" if position is not None else f"queue {run.queue}"
    return f"{place}: {waiting_reason(workload)}"


def _pods(run: ClusterRun, restarts: int, pods: Iterable[Object]) -> Iterable[PodSeen]:
    """Those of the present attempt; where a worker has several, the newest."""
    newest: dict[int, tuple[str, PodSeen]] = {}
    for pod in pods:
        meta = pod["metadata"]
        labels = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
        if str(labels.get(_RESTART, restarts)) != str(restarts):
            continue
        worker = int(labels.get(_JOB_INDEX) or 0) * run.hosts + int(labels.get(_POD_INDEX) or 0)
        created = str(meta.get("creationTimestamp") or "")
        if worker not in newest or created >= newest[worker][0]:
            newest[worker] = created, _pod(run, worker, pod)
    return [seen for _, seen in newest.values()]


def _pod(run: ClusterRun, worker: int, pod: Object) -> PodSeen:
    status = pod.get("status") or {}
    states = {each["name"]: each for each in status.get("containerStatuses") or ()}
    rows = [states.get(name, {}).get("state") or {} for name in run.containers]
    disruption = condition(pod, "DisruptionTarget")
    disrupted = disruption.get("status") == "True"
    ends = [row["terminated"] for row in rows if "terminated" in row]
    over = str(status.get("phase")) in ("Succeeded", "Failed") and (len(ends) == len(rows) or not ends)
    stuck, hopeless = _held_up(status)
    began = any("running" in row or "terminated" in row for row in rows)
    made_at = parse_timestamp(str(pod["metadata"].get("creationTimestamp") or ""))
    return PodSeen(
        pod=str(pod["metadata"]["name"]),
        made_at=made_at,
        placed_at=(_changed(pod, "PodScheduled") or made_at)
        if (pod.get("spec") or {}).get("nodeName")
        else None,
        node=str((pod.get("spec") or {}).get("nodeName") or ""),
        stuck=stuck,
        hopeless=hopeless,
        began=all("running" in row or "terminated" in row for row in rows),
        status=_status(
            worker,
            ends if over else [],
            [*ends, *(row["running"] for row in rows if "running" in row)],
            WorkerState.EXITED if over else WorkerState.RUNNING if began else WorkerState.ABSENT,
            detail=str(disruption.get("message") or disruption.get("reason") or "")
            if disrupted
            else _why(status),
            lost=disrupted or (over and not ends),
        ),
    )


def _status(
    worker: int,
    ends: Sequence[Object],
    begun: Sequence[Object],
    state: WorkerState,
    *,
    detail: str,
    lost: bool,
) -> WorkerStatus:
    """A worker with a process for each container of the program; the first that failed speaks."""
    codes = [_code(end) for end in ends]
    first = next((number for number, (status, _) in enumerate(codes) if status != 0), 0)
    status, signal = codes[first] if codes else (None, None)
    several = len(ends) > 1
    return WorkerStatus(
        worker=worker,
        state=WorkerState.LOST if lost and state is WorkerState.EXITED else state,
        exit_status=status,
        signal=signal,
        process=first if several and status != 0 else None,
        processes=tuple(
            ProcessStatus(number, exit_status=code, signal=sent) for number, (code, sent) in enumerate(codes)
        )
        if several
        else (),
        started_at=_moment(begun, "startedAt", min),
        ended_at=_moment(ends, "finishedAt", max),
        detail=detail,
    )


def _code(end: Object) -> tuple[int | None, int | None]:
    """Exit status, or signal."""
    code = int(end.get("exitCode") or 0)
    signal = int(end.get("signal") or (code - _SIGNALLED if code > _SIGNALLED else 0))
    return (None, signal) if signal else (code, None)


def _moment(ends: Sequence[Object], key: str, choose: Any) -> float | None:
    found = [at for end in ends if (at := parse_timestamp(str(end.get(key) or ""))) is not None]
    return float(choose(found)) if found else None


def _why(status: Object) -> str:
    """What a kubelet says of a pod as a whole, such as that its node had no memory."""
    return ": ".join(filter(None, (str(status.get("reason") or ""), str(status.get("message") or ""))))


def _held_up(status: Object) -> tuple[str, bool]:
    """Why the containers of a pod do not begin, and whether they never will."""
    rows = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    for row in rows:
        waiting = (row.get("state") or {}).get("waiting") or {}
        reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
        said = f"{reason}: {message}" if message else reason
        if reason in _PULLS or reason in _HOPELESS:
            in_vain = reason in _HOPELESS or any(word in message.lower() for word in _NO_IMAGE)
            return f"image {row.get('image', '')} cannot be pulled ({said})", in_vain
        if reason in _IN_VAIN:
            return said, "not found" in message or "couldn't find key" in message
    scheduled = condition({"status": status}, "PodScheduled")
    if scheduled.get("status") == "False":
        return str(scheduled.get("message") or scheduled.get("reason") or "no node takes it"), False
    return "", False
