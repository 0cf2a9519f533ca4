"""Pin the hosts of a slice that booted, greet them, and judge those that do not answer."""

from __future__ import annotations

from msgspec.structs import replace

from tpuctl.engine.events import Warn
from tpuctl.engine.reconcile import Outcome
from tpuctl.hosts.deadline import HOST_TIME_S, WATCH_TIME_S
from tpuctl.hosts.targets import host_targets
from tpuctl.model import timeouts
from tpuctl.model.records import Doubt
from tpuctl.model.verdict import Blind, Blocked, Wait
from tpuctl.slices.context import HeldSlice
from tpuctl.slices.enrollment import judge_refusal, why_closed
from tpuctl.slices.heartbeats import describe_life, listen_for_life
from tpuctl.slices.initialize import greeted
from tpuctl.slices.liveness import Life, Silence, judge_silence
from tpuctl.slices.loss import lose
from tpuctl.slices.probing import HostAnswers, find_workers, greet_workers
from tpuctl.slices.states import Effect, unhealthy


def probe_hosts(held: HeldSlice) -> Outcome:
    """On to what is asked of the hosts once every worker is pinned and answers."""
    pinned = _pin_workers(held)
    if pinned is not None:
        return pinned
    began = held.services.clock.now()
    answers = greet_workers(held.services, held.record, began + WATCH_TIME_S)
    if answers.answered:
        held.reach.saw(held.record.name)
    node = held.look.view.node
    if answers.refused and node is not None:
        return Outcome(judge_refusal(held.services, held.record, node, answers.trouble), acted=False)
    if answers.closed:
        return Outcome(why_closed(held.services, held.record, answers.trouble), acted=False)
    if not answers.all_well:
        return _silent(held, answers, began + HOST_TIME_S)
    return greeted(held)


def _pin_workers(held: HeldSlice) -> Outcome | None:
    """Writes addresses and host keys of all workers into the record; an outcome while it cannot."""
    node = held.look.view.node
    found = "the node" if node is None else find_workers(held.services, held.record, node)
    if node is None or isinstance(found, str):
        return Outcome(_unpinned(held, str(found)), acted=False)
    if found != held.incarnation.workers or node.uid != held.incarnation.node_uid:
        held.save(held.changed(workers=found, node_uid=node.uid))
        held.services.ssh_entries.update(held.record.name, host_targets(held.services, held.record))
    return None


def _unpinned(held: HeldSlice, missing: str) -> Wait | Blocked:
    """Keys that are never published keep a slice from being ready, but are no reason to delete it."""
    since, node = held.incarnation.cloud_ready_at, held.look.view.node
    until = (since or held.services.store.now()) + timeouts.HOST_KEYS_MAX_S
    if node is None or held.services.store.now() < until:
        return Wait(missing)
    why = (
        f"{node.name} shows no {missing} after {timeouts.HOST_KEYS_MAX_S / 60:.0f} min; guest attributes "
        "may be turned off by its metadata or by the policy compute.disableGuestAttributesAccess"
    )
    return Blocked(why, "export TPUCTL_HOST_KEYS=first-use believes the keys that its hosts show, once")


def _silent(held: HeldSlice, answers: HostAnswers, until: float) -> Outcome:
    """Hosts of a READY node do not answer: wait, own up to being blind, or give the incarnation up. Hosts of
    other slices are asked until `until`, by this machine's clock."""
    now, incarnation, trouble = held.services.store.now(), held.incarnation, answers.trouble
    if incarnation.doubt is None or incarnation.doubt.missing:
        booting_until = (incarnation.cloud_ready_at or now) + timeouts.BOOT_GRACE_S
        return Outcome(Wait(trouble, booting_until), False) if now < booting_until else doubt_hosts(held)
    silent_s = now - incarnation.doubt.since
    node = held.look.view.node
    sick = node is not None and unhealthy(node)
    late = silent_s >= timeouts.BOOT_GRACE_S
    left_s = max(1.0, until - held.services.clock.now())
    another = answers.answered > 0 or (late and held.reach.another(held.record.name, left_s))
    life = Life.UNKNOWN
    if not answers.answered:
        # Where other workers answer and this one does not, the slice is of no use even if it lives.
        life = listen_for_life(held.services, held.record, answers.silent, others_answer=another)
    judged = judge_silence(silent_s, reached_another=another, unhealthy=sick, life=life)
    if judged is Silence.BLIND:
        why = describe_life(life) if life is Life.MOVING else _nobody_answers(held.record.name)
        return Outcome(Blind(f"{trouble}; {why}"), acted=False)
    if judged is Silence.WAIT:
        return Outcome(Wait(trouble, incarnation.doubt.since + timeouts.UNREACHABLE_MAX_S), acted=False)
    why = f"{trouble} for {silent_s / 60:.0f} min while the node is READY"
    evidence = [
        *(["the API calls it unhealthy"] if sick else []),
        *(["other hosts answer this machine"] if another else []),
        *([describe_life(life)] if life is Life.STILL else []),
    ]
    lose(held, "unreachable", f"{why}; {', '.join(evidence)}", failed=True, give_up=True)
    held.services.emit(Warn(held.record.name, f"given up: {why}"))
    return Outcome(Wait(why), acted=True)


def _nobody_answers(name: str) -> str:
    return f"this machine reaches no other host either; if they are dead: `tpuctl down {name}`, then up again"


def doubt_hosts(held: HeldSlice) -> Outcome:
    """Starts the clock of a doubt: that the node is missing, or that its hosts are silent."""
    held.journal("doubt", held.plan.why)
    missing = held.plan.effect is Effect.DOUBT
    doubt = Doubt(held.services.store.now(), held.plan.why, missing)
    doubted = replace(held.incarnation, doubt=doubt)
    held.save(replace(held.record, state=held.plan.state, incarnation=doubted))
    return Outcome(Wait(held.plan.why), acted=True)


def trust_hosts(held: HeldSlice) -> Outcome:
    """Ends a doubt."""
    held.journal("trust", held.plan.why)
    held.save(held.changed(doubt=None))
    return Outcome(held.plan.verdict, acted=True)
