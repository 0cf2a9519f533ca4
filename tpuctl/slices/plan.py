"""One slice: from its record and one look at the cloud to the next effect."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.retries import DELETE, due_at, stuck
from tpuctl.lib.time import render_moment
from tpuctl.model import timeouts
from tpuctl.model.hosts import Api
from tpuctl.model.records import (
    WITH_HOSTS,
    Answer,
    Desired,
    Incarnation,
    Retry,
    SliceRecord,
    SliceState,
)
from tpuctl.model.resources import ResourceKind, gcloud_command
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.model.verdict import Blocked, Done, Verdict, Wait, wait_for
from tpuctl.slices.resolve import spent
from tpuctl.slices.states import (
    IGNORED,
    TRANSITIONS,
    Effect,
    LossKind,
    ObservedEvent,
    SliceEvent,
    To,
)
from tpuctl.slices.validation import OS_LOGIN, OS_LOGIN_OFF, STARTUP_SCRIPT

_TIMED = {SliceState.REQUESTED, SliceState.PROVISIONING, *WITH_HOSTS}
"""States in which nothing else tells a person of a slice that does not come on."""


class SlicePlan(Struct, frozen=True):
    """The state the record should be in, the effect to perform (if any), and the verdict if there is none."""

    state: SliceState
    effect: Effect | None
    why: str
    verdict: Verdict

    def moves(self, record: SliceRecord) -> bool:
        """Whether there is something to do for `record`, of which it is the plan."""
        return self.effect is not None or self.state is not record.state


def plan_slice(record: SliceRecord, observed: ObservedEvent, now: float) -> SlicePlan:
    """What to do for `record` after `observed`. Total: every (state, event) pair has an answer."""
    observed = _without_stalled(record, observed, now)
    if record.desired is Desired.DOWN and record.state not in {
        SliceState.DELETING,
        SliceState.GONE,
        *WITH_HOSTS,
    }:
        why = f"{record.name} is to go: {record.state}"
        return SlicePlan(SliceState.DELETING, None, why, wait_for(f"{record.name} to be gone"))
    pair = (record.state, observed.event)
    overdue = _overdue(record, observed, now)
    if overdue:
        return SlicePlan(SliceState.LOST, Effect.RECORD_LOSS, overdue, Wait(overdue))
    to = TRANSITIONS.get(pair)
    if pair == (SliceState.LOST, SliceEvent.NODE_READY) and record.incarnation and record.incarnation.given_up:
        # Not taken back as one that came up late: its hosts do not answer.
        to = To(SliceState.LOST, Effect.DELETE)
    if record.state is SliceState.LOST and observed.event in _COMING and _was_absent(record):
        # A read that was late, twice: nothing that waits or comes is deleted for that.
        to = To(SliceState.PROVISIONING)
    if pair == (SliceState.REFUSED, SliceEvent.ABSENT) and _was_denied(record) and now >= record.not_before:
        to = To(SliceState.REQUESTED, Effect.RENEW)
    hangs = _hangs(record, observed, now)
    if hangs:
        observed, to = ObservedEvent(observed.event, hangs), To(SliceState.REQUESTED, Effect.RENEW)
    unclear = _plan_unclear(record, observed, now)
    if unclear is not None:
        return unclear
    over = time_is_over(record, now)
    if to is None:
        if pair not in IGNORED:
            raise AssertionError(f"no transition for {pair}")
        verdict = _verdict_of_deletion(record, observed, now) or _verdict(record, record.state, observed, over)
        return SlicePlan(record.state, None, observed.why, verdict)
    unsure = _unseen(record, to, observed, now)
    if unsure is not None:
        return SlicePlan(record.state, None, unsure.why, unsure)
    if over and to.effect in {Effect.CREATE, Effect.RENEW}:
        return SlicePlan(SliceState.REMOVED, None, over, _ended(record, over))
    if to.effect in {Effect.CREATE, Effect.RENEW} and now < record.not_before:
        wait = Wait(f"next try after: {_last_loss(record)}", record.not_before)
        return SlicePlan(record.state, None, observed.why, wait)
    if to.effect is Effect.DELETE and _only_by_hand(record):
        hint = f"tpuctl down {record.name}, then up"
        why = f"{observed.why}; it was made by hand, so nothing but `down` deletes it"
        return SlicePlan(record.state, None, why, Blocked(why, hint))
    retry = _retry_of(record, str(to.effect))
    if retry is not None and now < due_at(retry) and not _is_next(retry, observed):
        return SlicePlan(record.state, None, observed.why, retry_verdict(record, retry, now))
    if to.effect is Effect.DOUBT:
        return _plan_doubt(record, to, observed, now)
    if to.effect is Effect.TRUST and (record.incarnation is None or record.incarnation.doubt is None):
        return SlicePlan(to.state, None, observed.why, Wait(observed.why))
    verdict = _verdict(record, to.state, observed, over)
    return SlicePlan(to.state, to.effect, observed.why, verdict)


_COMING = {SliceEvent.QUEUED, SliceEvent.CREATING}


def _was_absent(record: SliceRecord) -> bool:
    """Whether it counts as lost only because it was not there."""
    return record.loss is not None and record.loss.kind == LossKind.ABSENT


def _was_denied(record: SliceRecord) -> bool:
    return record.desired is Desired.UP and record.loss is not None and record.loss.kind == LossKind.DENIED


def _hangs(record: SliceRecord, observed: ObservedEvent, now: float) -> str:
    """Why a deletion is not waited for any more before the next incarnation, or an empty string."""
    if record.state is not SliceState.LOST or observed.event is not SliceEvent.DELETING or record.loss is None:
        return ""
    asked = _retry_of(record, DELETE)
    since = record.loss.at if asked is None else max(record.loss.at, asked.at)
    waited = now - since
    return f"{observed.why} for {waited / 60:.0f} min" if waited >= timeouts.DELETING_MAX_S else ""


def _retry_of(record: SliceRecord, call: str) -> Retry | None:
    """The last `call` for the current incarnation."""
    retry = record.incarnation.retry if record.incarnation else None
    return retry if retry is not None and retry.call == call else None


def retry_verdict(record: SliceRecord, retry: Retry, now: float) -> Blocked | Wait:
    """What is waited for between two tries of a call; a person is asked after long."""
    name = record.incarnation.cloud_name if record.incarnation else record.name
    why = stuck(retry, now)
    if why:
        return Blocked(f"{name}: {why}", _inspect_hint(record))
    if retry.answer is Answer.TAKEN:
        return wait_for(f"{name} to be gone", due_at(retry))
    return Wait(retry.said, due_at(retry))


def _is_next(retry: Retry, observed: ObservedEvent) -> bool:
    """Whether what a deletion was asked for is gone, and the next object of the same slice is due."""
    return retry.answer is Answer.TAKEN and bool(observed.left) and observed.left != retry.said


def _inspect_hint(record: SliceRecord) -> str:
    """How a person sees what the cloud shows of it."""
    spec, life = record.spec, record.incarnation
    name = record.name if life is None else life.queued_name if spec.queued else life.cloud_name
    return gcloud_command("describe", spec.made_as, name, spec.zone)


def _verdict_of_deletion(record: SliceRecord, observed: ObservedEvent, now: float) -> Blocked | None:
    """A deletion that was taken and does not end: after long a person is told."""
    retry = _retry_of(record, DELETE)
    ends = record.state is not SliceState.DELETING or observed.event is not SliceEvent.DELETING
    if ends or retry is None or now - retry.at < timeouts.RETRY_ASK_S:
        return None
    return Blocked(f"{observed.why} for {(now - retry.at) / 60:.0f} min", _inspect_hint(record))


def _without_stalled(record: SliceRecord, observed: ObservedEvent, now: float) -> ObservedEvent:
    """An operation with nothing to show counts only for a while: some never end."""
    called_at = record.incarnation.create_called_at if record.incarnation else None
    if not observed.pending or called_at is None or now - called_at < timeouts.CREATE_STALLED_S:
        return observed
    why = f"{observed.why} for {(now - called_at) / 60:.0f} min, and nothing exists"
    return ObservedEvent(SliceEvent.HALF_MADE if observed.left else SliceEvent.ABSENT, why, left=observed.left)


def _unseen(record: SliceRecord, to: To, observed: ObservedEvent, now: float) -> Wait | None:
    """A create may show late what it made, and whether it made anything is open where its answer was lost: for
    a while absence is no proof that the slice is gone, nor that it may be asked for anew."""
    incarnation = record.incarnation
    leaves = observed.event is SliceEvent.ABSENT and (to.state is SliceState.GONE or to.effect is Effect.RENEW)
    if not leaves or incarnation is None or incarnation.unseen_since is None:
        return None
    until = incarnation.unseen_since + timeouts.UNSEEN_S
    if now >= until:
        return None
    return wait_for(f"{incarnation.cloud_name} to show up or not: it was asked for and not seen yet", until)


def _plan_unclear(record: SliceRecord, observed: ObservedEvent, now: float) -> SlicePlan | None:
    """A slice on its way, or up, in a state that we do not know: timed, and after long left to a person."""
    life, why = record.incarnation, observed.why
    if life is None or record.state not in _TIMED or observed.event is SliceEvent.UNKNOWN:
        return None
    if observed.event is not SliceEvent.UNCLEAR:
        known = SlicePlan(record.state, Effect.MARK_UNCLEAR, why, Wait(why))
        return None if life.unclear_since is None else known
    if life.unclear_since is None:
        return SlicePlan(record.state, Effect.MARK_UNCLEAR, _unclear(record, why), Wait(why))
    until = life.unclear_since + timeouts.UNCLEAR_MAX_S
    if now < until:
        return SlicePlan(record.state, None, why, Wait(why, until))
    long = _unclear(record, why, f" for {(now - life.unclear_since) / 60:.0f} min")
    return SlicePlan(record.state, None, long, Blocked(long, f"tpuctl down {record.name}, then up"))


def _unclear(record: SliceRecord, why: str, long: str = "") -> str:
    """Hosts of Compute Engine say themselves what is unclear of them, which may be how they ended."""
    return f"{why}{long}{', which this tpuctl does not know' if record.spec.api is Api.TPU else ''}"


def _only_by_hand(record: SliceRecord) -> bool:
    """Somebody made it without tpuctl, and nobody asked that it should go."""
    incarnation = record.incarnation
    return incarnation is not None and incarnation.by_hand and record.desired is Desired.UP


def _overdue(record: SliceRecord, observed: ObservedEvent, now: float) -> str:
    """Why a queued request is given up for another zone, or an empty string: it waits, and elsewhere might be
    capacity. A request that is being provisioned is not waiting."""
    incarnation = record.incarnation
    if record.state is not SliceState.PROVISIONING or observed.event is not SliceEvent.QUEUED:
        return ""
    if incarnation is None or incarnation.create_called_at is None:
        return ""
    waited = now - incarnation.create_called_at
    others = [zone for zone in record.candidates if zone != record.spec.zone]
    open_elsewhere = any(record.zone_not_before.get(zone, 0.0) <= now for zone in others)
    if waited < timeouts.HUNT_PATIENCE_S or not open_elsewhere:
        return ""
    return f"no capacity in {record.spec.zone} for {waited / 60:.0f} min; another zone is tried"


def _plan_doubt(record: SliceRecord, to: To, observed: ObservedEvent, now: float) -> SlicePlan:
    """A node that is missing although its queued resource is ACTIVE: written down first, given up later."""
    doubt = record.incarnation.doubt if record.incarnation else None
    if doubt is None or not doubt.missing:
        return SlicePlan(to.state, Effect.DOUBT, observed.why, Wait(observed.why))
    until = doubt.since + timeouts.NODE_MISSING_MAX_S
    if now >= until:
        why = f"{observed.why} for {(now - doubt.since) / 60:.0f} min"
        return SlicePlan(SliceState.LOST, Effect.RECORD_LOSS, why, Wait(why))
    return SlicePlan(to.state, None, observed.why, Wait(observed.why, until))


def _last_loss(record: SliceRecord) -> str:
    return record.loss.detail if record.loss else "a failed create"


def time_is_over(record: SliceRecord, now: float) -> str:
    """Why the slice is not asked for again by itself, or an empty string. A person who asks again begins anew:
    the recorded loss is that of the current incarnation or None."""
    incarnation, spec = record.incarnation, record.spec
    if spec.valid_until is None and record.loss is None:
        return ""
    if incarnation is None or record.state not in {SliceState.REQUESTED, SliceState.LOST, SliceState.REMOVED}:
        return ""
    lost = record.state is not SliceState.REQUESTED and record.loss is not None
    ends = _ended_at(record)
    if lost and ends is not None and now >= ends:
        return f"its time ended at {render_moment(ends)}"
    called_at = incarnation.create_called_at if lost else None
    return spent(
        spec,
        requested_at=now if called_at is None else called_at,
        came_up_at=incarnation.cloud_ready_at if lost else None,
        now=now,
    )


def _ended_at(record: SliceRecord) -> float | None:
    """The end of its lifetime, where Compute Engine ended it: no pass has lived to do that."""
    over = record.loss is not None and record.loss.kind == LossKind.TIME_OVER
    return record.lifetime.expires_at if over and record.lifetime is not None else None


def time_left(record: SliceRecord, now: float) -> float | None:
    """After how many seconds Compute Engine itself is to end the hosts of a slice, whoever lives then: some
    time after `--ttl`, because a pass warns hosts and saves what they wrote. None for never."""
    said, lifetime = record.spec.run_duration_s, record.lifetime
    if record.spec.api is not Api.COMPUTE or lifetime is None or lifetime.expires_at is None:
        return said
    left = max(lifetime.expires_at - now, 0.0) + timeouts.OUTLIVED_S
    return left if said is None else min(said, left)


def hosts_end(before: SliceRecord, after: SliceRecord) -> str:
    """What another `--ttl` means for hosts that are there; empty where there is nothing to be said.

    Compute Engine ends them as it was told when it made them: it takes another run time for stopped instances
    alone (https://cloud.google.com/compute/docs/reference/rest/v1/instances/setScheduling), and to stop a host
    of a slice is to lose what is in its memory.
    """
    life, old, new = before.incarnation, before.lifetime, after.lifetime
    then, now = old.expires_at if old else None, new.expires_at if new else None
    asked = life is not None and life.create_called_at is not None
    if after.spec.api is not Api.COMPUTE or not asked or now == then:
        return ""
    if now is not None and then is not None and now < then:
        return ""  # a pass ends them before
    when = f"`tpuctl status {after.name}` says when, and where it does not, only a pass ends them"
    return f"Compute Engine still ends the hosts that are there as it was told when it made them: {when}"


def _ended(record: SliceRecord, over: str) -> Blocked:
    if _ended_at(record) is not None:
        return Blocked(over, f"tpuctl up {record.name} --ttl 8h, or tpuctl down {record.name}")
    until = record.spec.valid_until is not None
    hint = (
        f"tpuctl down {record.name}, then up with another --valid-until"
        if until
        else f"tpuctl up {record.name}"
    )
    return Blocked(over, hint)


def _verdict(record: SliceRecord, state: SliceState, observed: ObservedEvent, over: str) -> Verdict:
    if state is SliceState.READY and observed.event is SliceEvent.NODE_READY:
        return Done("all hosts answered")
    if state is SliceState.GONE:
        return Done("nothing is left in the cloud")
    if state is SliceState.REMOVED and record.desired is Desired.UP:
        if over:
            return _ended(record, over)
        return Blocked(f"{observed.why}; somebody removed it", f"tpuctl up {record.name}")
    if state is SliceState.REFUSED:
        return Blocked(f"the request was refused: {_last_loss(record)}", record.way_up)
    if state is SliceState.LOST and observed.event is SliceEvent.UNCLEAR:
        why = f"{_unclear(record, observed.why)}; nothing is deleted on a guess"
        return Blocked(why, f"tpuctl down {record.name}, then up")
    if observed.event is SliceEvent.STOPPED:
        name = record.incarnation.cloud_name if record.incarnation else record.name
        start = gcloud_command("start", ResourceKind.NODE, name, record.spec.zone)
        # Hosts that were stopped, or deleted out of a group, come back with nothing that was in their memory.
        anew = record.spec.api is Api.COMPUTE
        return Blocked(observed.why, f"tpuctl down {record.name}, then up" if anew else start)
    return Wait(observed.why)


def next_incarnation(record: SliceRecord, now: float) -> Incarnation:
    """The intent for one more life: a cloud name that was never used before."""
    number = record.last_incarnation + 1
    return Incarnation(number=number, cloud_name=f"{record.name}-{number}", requested_at=now)


def node_spec(
    record: SliceRecord, labels: dict[str, str], ssh_keys: str, startup_script: str | None = None
) -> SliceSpec:
    """What is sent for one incarnation: the specification with all of its labels and metadata.

    Keys go in at create: adding one later is a slow PATCH. OS Login, which would ignore them, is turned off
    for the node, whatever its project says. `labels` are the owner's; nothing in the specification can replace
    them, nor the keys.
    """
    spec = record.spec
    script = {} if startup_script is None else {STARTUP_SCRIPT: startup_script}
    return replace(
        spec,
        labels={**spec.labels, **labels},
        metadata={**spec.metadata, OS_LOGIN: OS_LOGIN_OFF, **script, "ssh-keys": ssh_keys},
    )
