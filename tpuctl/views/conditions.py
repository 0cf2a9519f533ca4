"""The condition of a slice in words, and what to type then: recorded and shown states side by side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from tpuctl.lib.text import counted
from tpuctl.lib.time import render_moment, render_span
from tpuctl.model.records import WITH_HOSTS, Desired, SliceRecord, SliceState

ABSENT = "absent"
"""What `ls` shows for a slice of which the cloud, read in full, has neither node nor request."""
UNREAD = "unread"
"""Its zone could not be read: nobody knows."""

FOLD_FROM = 3
"""So many slices of which the same is to be said are told of together."""
SHOWN_NAMES = 6

_EXPECTED = frozenset({SliceState.PROVISIONING, *WITH_HOSTS})
"""States of a slice that the cloud has shown and still should."""
_ENDED = frozenset({"SUSPENDED", "SUSPENDING", "PREEMPTED", "TERMINATED", "STOPPED", "FAILED"})
"""What the cloud calls capacity that is no longer there."""


class Condition(str):
    """A sentence about one slice, `subject`, in which `{name}` is its name; empty where all is well."""

    subject: str
    of_all: str
    """The same sentence about NAME: equal for slices of which the same is to be said."""

    def __new__(cls, subject: str, sentence: str = "", **parts: object) -> Self:
        """`sentence` is a format string, `parts` are its other fields."""
        made = super().__new__(cls, sentence.format(name=subject, **parts))
        made.subject, made.of_all = subject, sentence.format(name="NAME", **parts)
        return made


def cloud_word(record: SliceRecord, shown: str, *, unread: bool) -> str:
    """The state of a slice in the cloud, in one word; empty where nothing was ever requested."""
    if shown:
        return shown
    if unread:
        return UNREAD
    return ABSENT if record.incarnation and record.incarnation.create_called_at is not None else ""


def judge_condition(
    record: SliceRecord, cloud: str, *, why: bool = True, limit_s: float | None = None
) -> Condition:
    """What a person should know about a slice that is not as it was wanted.

    `cloud` is a word of `cloud_word`, or empty when the cloud was not asked. `why`: with the reason of a
    refusal, which `status` has told already. `limit_s`: how long its hosts may be silent.
    """
    loss = record.loss.detail if record.loss else ""
    return Condition(
        record.name,
        "; ".join(filter(None, (_of_state(record, cloud, why=why) or _silent(record), _orphans(record)))),
        state=record.state,
        cloud=cloud,
        zone=record.spec.zone,
        loss=loss,
        queued=record.incarnation.queued_name if record.incarnation else "",
        silent_since=render_moment(record.incarnation.doubt.since)
        if record.incarnation and record.incarnation.doubt
        else "",
        after=f" after {render_span(limit_s)}," if limit_s is not None else "",
        orphans=", ".join(f"{each.name} in {each.zone}" for each in record.orphans),
        orphaned=record.orphans[0].why if record.orphans else "",
    )


def _orphans(record: SliceRecord) -> str:
    if not record.orphans:
        return ""
    return (
        "{orphans} of an earlier life of {name} is still there and costs: {orphaned}; "
        "`tpuctl reap --force` deletes it with what may be lost"
    )


_SETTLE = "`tpuctl up {name}` settles it, or a pass of the watchdog"


def _of_state(record: SliceRecord, cloud: str, *, why: bool) -> str:
    state = record.state
    if state is SliceState.REMOVED:
        return _removed(record, cloud)
    if state is SliceState.REFUSED:
        reason = ": {loss}" if record.loss and why else ""
        return (
            "{name} was refused"
            + reason
            + "; `tpuctl up {name}` asks again, `tpuctl down {name}` clears it away"
        )
    if cloud == UNREAD:
        return "{name}: {zone} could not be read; how it stands is unknown"
    if state in _EXPECTED and cloud == ABSENT:
        return "{name} is recorded as {state}, but nothing of it is left in the cloud; " + _SETTLE
    if state in _EXPECTED and cloud in _ENDED:
        return "{name} is recorded as {state}, but the cloud says {cloud}; " + _SETTLE
    if cloud == ABSENT and (state is SliceState.DELETING or record.desired is Desired.DOWN):
        return "{name} is {state}, and nothing is left in the cloud; `tpuctl down {name}` or a pass ends it"
    if cloud == ABSENT and state is SliceState.LOST:
        return "{name} was lost; `tpuctl up {name}` asks for it again, or a pass of the watchdog"
    return ""


def _silent(record: SliceRecord) -> str:
    """Hosts that were well once and do not answer now: only a person may know that they are dead."""
    doubt = record.incarnation.doubt if record.incarnation else None
    if record.state is not SliceState.BOOTING or doubt is None or doubt.missing:
        return ""
    return (
        "hosts of {name} have not answered since {silent_since}; a pass gives it up{after} once more than that"
        " speaks against them, or you do: `tpuctl down {name}`, then up again"
    )


def _removed(record: SliceRecord, cloud: str) -> str:
    text = "{name} was deleted or suspended outside tpuctl and stays away"
    rest = record.incarnation.queued_name if record.incarnation and record.spec.queued else ""
    if rest and cloud in _ENDED:
        text += ", but its queued resource {queued} is {cloud} and holds quota"
    elif rest and not cloud:
        text += "; if its queued resource {queued} is left, that holds quota"
    return text + ": `tpuctl up {name}` asks for it again, `tpuctl down {name}` deletes what is left"


def group_conditions(conditions: Iterable[Condition]) -> list[str]:
    """What is to be said of slices: what is the same for many of them is said once."""
    alike: dict[str, list[Condition]] = {}
    for each in conditions:
        alike.setdefault(each.of_all, []).append(each)
    lines: list[str] = []
    for text, group in alike.items():
        if len(group) < FOLD_FROM:
            lines += group
            continue
        names = ", ".join([each.subject for each in group[:SHOWN_NAMES]] + ["…"] * (len(group) > SHOWN_NAMES))
        lines.append(f"{counted(len(group), 'slice')} ({names}): {text}")
    return lines
