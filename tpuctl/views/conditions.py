"""The condition of a slice in words, and what to type then: recorded and shown states side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence

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


def cloud_word(record: SliceRecord, shown: str, *, unread: bool) -> str:
    """The state of a slice in the cloud, in one word; empty where nothing was ever requested."""
    if shown:
        return shown
    if unread:
        return UNREAD
    return ABSENT if record.incarnation and record.incarnation.create_called_at is not None else ""


def remark(record: SliceRecord, cloud: str, *, why: bool = True, limit_s: float | None = None) -> str:
    """What a person should know about a slice that is not as it was wanted, or an empty string.

    `cloud` is a word of `cloud_word`, or empty when the cloud was not asked. `why`: with the reason of a
    refusal, which `status` has told already. `limit_s`: how long its hosts may be silent.
    """
    said = _of_state(record, cloud, why=why) or _silent(record, limit_s)
    return "; ".join(filter(None, (said, _orphans(record))))


def _orphans(record: SliceRecord) -> str:
    if not record.orphans:
        return ""
    names = ", ".join(f"{each.name} in {each.zone}" for each in record.orphans)
    return (
        f"{names} of an earlier life of {record.name} is still there and costs: {record.orphans[0].why}; "
        "`tpuctl reap --force` deletes it with what may be lost"
    )


def _of_state(record: SliceRecord, cloud: str, *, why: bool) -> str:
    name, state = record.name, record.state
    if state is SliceState.REMOVED:
        return _removed(record, cloud)
    if state is SliceState.REFUSED:
        reason = f": {record.loss.detail}" if record.loss and why else ""
        return f"{name} was refused{reason}; `tpuctl up {name}` asks again, `tpuctl down {name}` clears it away"
    if cloud == UNREAD:
        return f"{name}: {record.spec.zone} could not be read; how it stands is unknown"
    settle = f"`tpuctl up {name}` settles it, or a pass of the watchdog"
    if state in _EXPECTED and cloud == ABSENT:
        return f"{name} is recorded as {state}, but nothing of it is left in the cloud; {settle}"
    if state in _EXPECTED and cloud in _ENDED:
        return f"{name} is recorded as {state}, but the cloud says {cloud}; {settle}"
    if cloud == ABSENT and (state is SliceState.DELETING or record.desired is Desired.DOWN):
        return f"{name} is {state}, and nothing is left in the cloud; `tpuctl down {name}` or a pass ends it"
    if cloud == ABSENT and state is SliceState.LOST:
        return f"{name} was lost; `tpuctl up {name}` asks for it again, or a pass of the watchdog"
    return ""


def _silent(record: SliceRecord, limit_s: float | None) -> str:
    """Hosts that were well once and do not answer now: only a person may know that they are dead."""
    doubt = record.incarnation.doubt if record.incarnation else None
    if record.state is not SliceState.BOOTING or doubt is None or doubt.missing:
        return ""
    after = f" after {render_span(limit_s)}," if limit_s is not None else ""
    return (
        f"hosts of {record.name} have not answered since {render_moment(doubt.since)}; a pass gives it up"
        f"{after} once more than that speaks against them, or you do: `tpuctl down {record.name}`, then up"
        " again"
    )


def group_conditions(conditions: Sequence[tuple[str, str]]) -> list[str]:
    """What is to be said of slices, given by name: what is the same for many of them is said once."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for name, text in conditions:
        alike.setdefault(re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "NAME", text), []).append(
            (name, text)
        )
    lines = []
    for text, group in alike.items():
        if len(group) < FOLD_FROM:
            lines += [each for _, each in group]
            continue
        names = ", ".join([name for name, _ in group[:SHOWN_NAMES]] + ["…"] * (len(group) > SHOWN_NAMES))
        lines.append(f"{counted(len(group), 'slice')} ({names}): {text}")
    return lines


def _removed(record: SliceRecord, cloud: str) -> str:
    name = record.name
    text = f"{name} was deleted or suspended outside tpuctl and stays away"
    rest = record.incarnation.queued_name if record.incarnation and record.spec.queued else ""
    if rest and cloud in _ENDED:
        text += f", but its queued resource {rest} is {cloud} and holds quota"
    elif rest and not cloud:
        text += f"; if its queued resource {rest} is left, that holds quota"
    return f"{text}: `tpuctl up {name}` asks for it again, `tpuctl down {name}` deletes what is left"
