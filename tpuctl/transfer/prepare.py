"""Calls of the agent that every worker must answer well, and sending what hosts lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from tpuctl.engine.services import Services
from tpuctl.errors import PartialError
from tpuctl.hosts.agent import Asked, HostAgent, Reply
from tpuctl.hosts.deadline import is_late
from tpuctl.hosts.protocol import LacksReply, PrepareReply, WorkerState
from tpuctl.hosts.provision import Deliver
from tpuctl.hosts.requests import LacksRequest, PrepareRequest
from tpuctl.hosts.worker_status import WorkerStatus
from tpuctl.lib.text import counted
from tpuctl.model import timeouts
from tpuctl.model.cloud import FailureKind, HostTarget, RemoteResult
from tpuctl.model.verdict import Wait, wait_for
from tpuctl.transfer.bundle import store_content
from tpuctl.transfer.distribute import distribute
from tpuctl.transfer.host_copies import CopyJob, copy_name
from tpuctl.transfer.lacking import CODE
from tpuctl.transfer.tree import Blob, Content, make_tree

T = TypeVar("T")
BROKEN = "promise"
"""A host refuses: it has not, or no more, what a run was promised of it."""


CLOSED_TO_US = frozenset({FailureKind.AUTH, FailureKind.HOST_KEY})
"""Failures of hosts that do answer: a machine whose key they do not know proves nothing about them."""


def require_all(replies: Sequence[Reply[Any]], what: str) -> None:
    """Raises PartialError naming every worker that did not answer well."""
    bad = [reply for reply in replies if reply.error is not None or reply.value is None]
    if not bad:
        return
    first = bad[0]
    why = first.message or describe_result(first.result)
    raise PartialError(
        f"{len(bad)} of {counted(len(replies), 'worker')} did not {what}: worker {first.worker}: {why}",
        details={
            "workers": [reply.worker for reply in bad],
            "unreached": [reply.worker for reply in bad if reply.result.failure is not None],
            "refused": [reply.worker for reply in bad if reply.result.failure is FailureKind.AUTH],
            "broken": [reply.worker for reply in bad if reply.error == BROKEN],
        },
    )


def require_values(answers: Sequence[Reply[T]], what: str) -> list[T]:
    """The parsed answers of all workers, or PartialError."""
    require_all(answers, what)
    return [answer.value for answer in answers if answer.value is not None]


def describe_result(result: RemoteResult) -> str:
    """Why a result is not a success, in words."""
    if result.failure is not None:
        return f"{result.failure}: {result.detail}" if result.detail else str(result.failure)
    tail = result.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return f"exit status {result.exit_status}" + (f": {tail[0]}" if tail else "")


def status_of(reply: Reply[WorkerStatus]) -> WorkerStatus:
    """How one worker stands, also where it did not answer or says what is not known here."""
    if reply.value is not None and reply.value.state is not WorkerState.UNKNOWN:
        return reply.value
    closed = reply.result.failure in CLOSED_TO_US
    state = WorkerState.CLOSED if closed else WorkerState.UNREACHABLE
    return WorkerStatus(reply.worker, state, detail=reply.message or describe_result(reply.result))


SLICE_S = 0.6 * timeouts.STEP_MAX_S
"""For sending code in one step; the rest of its time is for asking before and after."""
DRAIN_S = 2.0
"""Before the end of a step, for what is in the pipes: calls end with the step, and what arrived counts. Hosts
that take 5 s for a call are asked twice in a step; with more, nothing would ever be sent to them."""
PREPARE_ROUNDS = 3
"""A host may lose contents between two calls, to a clean-up or a damaged disk; then they are sent again."""


def prepare_on(
    services: Services,
    agent: HostAgent,
    targets: Sequence[HostTarget],
    *,
    run: str,
    attempt: str,
    fence: int,
    bundle: str,
    owner: str,
    until: float | None = None,
    send_first: bool = False,
    fresh: bool = False,
    promised: Mapping[int, Sequence[Mapping[str, Any]]] | None = None,
    port: int | None = None,
    kept: Mapping[str, int] | None = None,
) -> list[PrepareReply] | str:
    """`prepare` on `targets`, sending those of the bundle's contents that they lack. The first one looks for a
    free port. Returns what is waited for when that takes longer than a step may; the same call goes on there.

    `owner` names what hosts copy from each other for this, also between two steps (see `host_copies`). `until`
    is when the step ends, by this machine's clock. `send_first`: slow hosts are not asked first what they lack,
    so that each step has time to send; nor are `fresh` ones, on which no code was ever put. `promised`: what
    each has to have, or it refuses. `port`: the wanted one. `kept`: see `sweep` of the agent.

    Raises PartialError when a worker does not acknowledge.
    """
    first, job = targets[0].worker, CopyJob(owner, fence)
    sending = services.clock.now() + SLICE_S
    sending = sending if until is None else min(sending, until - DRAIN_S)

    def request(target: HostTarget) -> PrepareRequest:
        want_port = (port or 0) if target.worker == first else None
        asked = tuple((promised or {}).get(target.worker, ()))
        return PrepareRequest(run, attempt, fence, bundle, want_port, asked, kept or {})

    lacks = LacksRequest(CODE.area, bundle, copy=copy_name(job, bundle, "fetch"))
    done: dict[int, PrepareReply] = {}
    lacking = list(targets) if send_first or fresh else []
    known: list[Reply[LacksReply]] = []
    for _ in range(PREPARE_ROUNDS):
        if lacking:
            sent = _send_code(services, agent, lacking, targets, bundle, job, sending, known, fresh, request)
            if isinstance(sent, str):
                return sent
            done.update(sent)
        asked = [target for target in targets if target.worker not in done]
        answers, told = agent.ask_both(asked, request, lacks)
        for target, reply in zip(asked, require_values(answers, "prepare"), strict=True):
            if reply.prepared:
                done[target.worker] = reply
        lacking = [target for target in asked if target.worker not in done]
        if not lacking:
            return [done[target.worker] for target in targets]
        known = [answer for answer in told if answer.value is not None and answer.worker not in done]
    raise PartialError(
        f"{len(lacking)} of {counted(len(targets), 'worker')} lost the code again as soon as it was there",
        hint="is their disk full? tpuctl exec NAME -- df -h",
        details={"workers": [target.worker for target in lacking]},
    )


def _send_code(
    services: Services,
    agent: HostAgent,
    lacking: Sequence[HostTarget],
    everyone: Sequence[HostTarget],
    bundle: str,
    job: CopyJob,
    until: float,
    known: Sequence[Reply[LacksReply]],
    fresh: bool,
    prepare: Asked[PrepareReply],
) -> dict[int, PrepareReply] | str:
    """Sends what is lacking until the time is up: what is waited for then, or who prepared it at once."""
    store = services.store
    content = Content(store.get_blob(bundle), lambda sha256: [store.get_blob(sha256)])
    sent = distribute(
        agent,
        lacking,
        content,
        clock=services.clock,
        emit=services.emit,
        until=until,
        job=job,
        complete=[target for target in everyone if target not in lacking],
        known=known,
        fresh=fresh,
        prepare=prepare,
    )
    require_all(list(sent.failed.values()), "receive the code")
    prepared = {
        worker: reply.value
        for worker, reply in sent.prepared.items()
        if reply.value is not None and reply.value.prepared
    }
    if sent.copying:
        have = len(everyone) - len(sent.unfinished)
        return f"the code, which workers copy from each other: {have} of {len(everyone)} have it"
    # What is left of the time may be too little for their word that nothing is lacking: the next step asks.
    to_ask = len(lacking) - len(prepared)
    unfinished = len(sent.unfinished) or (to_ask if services.clock.now() >= until else 0)
    return f"the code on {counted(unfinished, 'worker')}" if unfinished else prepared


def deliver_files(services: Services, agent: HostAgent, until: float | None = None) -> Deliver:
    """How a provisioning job gets its files: as a run gets its code. Raises as `prepare_on` does."""

    def deliver(
        targets: Sequence[HostTarget], run: str, attempt: str, fence: int, files: Mapping[str, bytes | Blob]
    ) -> str | Wait:
        content = make_tree(files, lambda sha256: [services.store.get_blob(sha256)])
        if not targets:
            return content.sha256
        bundle = store_content(services.store, content)
        prepared = prepare_on(
            services,
            agent,
            targets,
            run=run,
            attempt=attempt,
            fence=fence,
            bundle=bundle,
            owner=f"{run}-{attempt}",
            until=until,
            send_first=is_late(services.clock, until),
        )
        return wait_for(prepared) if isinstance(prepared, str) else bundle

    return deliver
