"""Pin the hosts of a slice that booted, probe them, and classify those that do not answer."""

from __future__ import annotations

from msgspec.structs import replace

from tpuctl.engine.events import Warn
from tpuctl.engine.reconcile import Outcome
from tpuctl.hosts.deadline import HOST_TIME_S, WATCH_TIME_S
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.time import render_span
from tpuctl.model import timeouts
from tpuctl.model.hosts import Api
from tpuctl.model.records import Doubt
from tpuctl.model.verdict import Blind, Blocked, Wait, wait_for
from tpuctl.slices.classify import unhealthy
from tpuctl.slices.context import ReconcileContext
from tpuctl.slices.enrollment import judge_refusal, why_closed
from tpuctl.slices.heartbeats import check_liveness, describe_liveness
from tpuctl.slices.initialize import hosts_answered
from tpuctl.slices.liveness import Liveness, Silence, classify_silence
from tpuctl.slices.loss import mark_lost
from tpuctl.slices.probing import HostAnswers, find_workers, number_workers, probe_workers
from tpuctl.slices.replacement import find_replacement_limit
from tpuctl.slices.states import Effect, LossKind


def probe_hosts(context: ReconcileContext) -> Outcome:
    """Pins and probes every worker; once all answer, initialization begins."""
    pinned = _pin_workers(context)
    if pinned is not None:
        return pinned
    began = context.services.clock.now()
    answers = probe_workers(context.services, context.record, began + WATCH_TIME_S)
    if answers.answered or answers.unfit:
        context.partition.saw(context.record.name)
    node = context.observation.info.node
    if answers.refused and node is not None:
        return Outcome(judge_refusal(context.services, context.record, node, answers.trouble), acted=False)
    if answers.unfit and context.incarnation.ready_at is None and _booted(context):
        worker, name = answers.silent[0], context.record.name
        look = f"tpuctl ssh --worker {worker} {name} -- 'df -h ~; ls -ld ~ ~/.tpuctl; touch ~/.tpuctl/x'"
        return Outcome(Blocked(answers.trouble, look), acted=False)
    if answers.closed:
        return Outcome(why_closed(context.services, context.record, answers.trouble), acted=False)
    if not answers.all_well:
        return _silent(context, answers, began + HOST_TIME_S)
    return _misnumbered(context, answers) or hosts_answered(context)


def _misnumbered(context: ReconcileContext, answers: HostAnswers) -> Outcome | None:
    """Writes the workers of Compute Engine down in the order of their numbers; why that cannot be, if so."""
    if context.record.spec.api is not Api.COMPUTE:
        return None
    workers, name = context.incarnation.workers, context.record.name
    found = number_workers(workers, answers.numbers)
    if isinstance(found, str):
        why = f"{found}: which host is which worker cannot be known, and programs would go by it"
        return Outcome(Blocked(why, f"tpuctl down {name}, then up again"), acted=False)
    if found != workers:
        context.save(context.changed(workers=found))
        context.services.ssh_entries.update(name, host_targets(context.services, context.record))
    return None


def _booted(context: ReconcileContext) -> bool:
    """Whether its hosts had their time: a home may be made late."""
    since = context.incarnation.cloud_ready_at
    return since is not None and context.services.store.now() >= since + timeouts.BOOT_GRACE_S


def _pin_workers(context: ReconcileContext) -> Outcome | None:
    """Writes addresses and host keys of all workers into the record; returns an outcome while it cannot."""
    node = context.observation.info.node
    found = "the node" if node is None else find_workers(context.services, context.record, node)
    if node is None or isinstance(found, str):
        return Outcome(_unpinned(context, str(found)), acted=False)
    if found != context.incarnation.workers or node.uid != context.incarnation.node_uid:
        context.save(context.changed(workers=found, node_uid=node.uid))
        context.services.ssh_entries.update(context.record.name, host_targets(context.services, context.record))
    return None


def _unpinned(context: ReconcileContext, missing: str) -> Wait | Blocked:
    """Host keys that are never published keep a slice from becoming ready, but are no reason to delete it."""
    since, node = context.incarnation.cloud_ready_at, context.observation.info.node
    until = (since or context.services.store.now()) + timeouts.HOST_KEYS_MAX_S
    if node is None or context.services.store.now() < until:
        return wait_for(missing)
    why = (
        f"{node.name} shows no {missing} after {timeouts.HOST_KEYS_MAX_S / 60:.0f} min; guest attributes "
        "may be turned off by its metadata or by the policy compute.disableGuestAttributesAccess"
    )
    return Blocked(why, "export TPUCTL_HOST_KEYS=first-use believes the keys that its hosts show, once")


def _silent(context: ReconcileContext, answers: HostAnswers, until: float) -> Outcome:
    """Hosts of a READY node do not answer: wait, own up to being blind, or give the incarnation up. Hosts of
    other slices are asked until `until`, by this machine's clock."""
    now, incarnation, trouble = context.services.store.now(), context.incarnation, answers.trouble
    if incarnation.doubt is None or incarnation.doubt.missing:
        booting_until = (incarnation.cloud_ready_at or now) + timeouts.BOOT_GRACE_S
        return Outcome(Wait(trouble, booting_until), False) if now < booting_until else doubt_hosts(context)
    silent_s = now - incarnation.doubt.since
    node = context.observation.info.node
    sick = node is not None and unhealthy(node)
    late = silent_s >= timeouts.BOOT_GRACE_S
    left_s = max(1.0, until - context.services.clock.now())
    # A host that has no room for the agent any more was reached all the same: its home filled up since.
    another = (
        answers.answered > 0
        or answers.unfit
        or (late and context.partition.another(context.record.name, left_s))
    )
    liveness = Liveness.UNKNOWN
    if not answers.answered:
        # Where other workers answer and this one does not, the slice is of no use even if it lives.
        liveness = check_liveness(context.services, context.record, answers.silent, others_answer=another)
    limit_s = find_replacement_limit(context.services, context.record, node)
    judged = classify_silence(
        silent_s, reached_another=another, unhealthy=sick, liveness=liveness, limit_s=limit_s
    )
    if judged is Silence.BLIND:
        why = (
            describe_liveness(liveness) if liveness is Liveness.MOVING else _nobody_answers(context.record.name)
        )
        return Outcome(Blind(f"{trouble}; {why}"), acted=False)
    if judged is Silence.WAIT:
        said = f"{trouble}; given up after {render_span(limit_s)} of silence"
        return Outcome(Wait(said, incarnation.doubt.since + limit_s), acted=False)
    why = f"{trouble} for {silent_s / 60:.0f} min while the node is READY"
    reasons = [
        *(["the API calls it unhealthy"] if sick else []),
        *(["they take SSH but not the agent"] if answers.unfit else []),
        *(["other hosts answer this machine"] if another and not answers.unfit else []),
        *([describe_liveness(liveness)] if liveness is Liveness.STILL else []),
    ]
    mark_lost(context, LossKind.UNREACHABLE, f"{why}; {', '.join(reasons)}", failed=True, give_up=True)
    context.services.emit(Warn(context.record.name, f"given up: {why}"))
    return Outcome(Wait(why), acted=True)


def _nobody_answers(name: str) -> str:
    return f"this machine reaches no other host either; if they are dead: `tpuctl down {name}`, then up again"


def doubt_hosts(context: ReconcileContext) -> Outcome:
    """Records a doubt and its time: the node is missing, or its hosts are silent."""
    context.journal("doubt", context.plan.why)
    missing = context.plan.effect is Effect.DOUBT
    doubt = Doubt(context.services.store.now(), context.plan.why, missing)
    doubted = replace(context.incarnation, doubt=doubt)
    context.save(replace(context.record, state=context.plan.state, incarnation=doubted))
    return Outcome(Wait(context.plan.why), acted=True)


def trust_hosts(context: ReconcileContext) -> Outcome:
    """Ends a doubt."""
    context.journal("trust", context.plan.why)
    context.save(context.changed(doubt=None))
    return Outcome(context.plan.verdict, acted=True)
