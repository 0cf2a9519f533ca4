"""The life of a slice as a picture: its states over time, of what its journal has. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from tpuctl.lib.time import parse_timestamp, render_span
from tpuctl.model.records import SliceState
from tpuctl.slices.states import LossKind as Loss
from tpuctl.views.report_page import Segment, Share

SHOWN = 60
"""Changes of state in a picture, the newest."""
_WAITING, _UNMADE, _COMING, _READY, _LOST, _ENDED = (
    "waiting",
    "preparing",
    "provisioning",
    "training",
    "lost",
    "unseen",
)
TITLES: Mapping[str, str] = {
    _WAITING: "waiting for capacity",
    _UNMADE: "not made: tried again later, or refused",
    _COMING: "coming up",
    _READY: "ready",
    _LOST: "lost",
    _ENDED: "deleted, or being deleted",
}
"""By the classes that the style sheet has, in the order of a life."""
LEADS: Mapping[str, str] = {
    **dict.fromkeys(("up", "create", "renew", SliceState.REQUESTED, SliceState.PROVISIONING), _WAITING),
    **dict.fromkeys((Loss.CREATE_FAILED, Loss.ABSENT, Loss.ZONE_REFUSED, Loss.DENIED), _UNMADE),
    SliceState.REFUSED: _UNMADE,
    **dict.fromkeys((SliceState.BOOTING, SliceState.INITIALIZING, "doubt"), _COMING),
    **dict.fromkeys((SliceState.READY, "adopt"), _READY),
    **dict.fromkeys((Loss.PREEMPTED, Loss.UNREACHABLE, Loss.BROKEN, Loss.TIME_OVER), _LOST),
    **dict.fromkeys((SliceState.LOST, SliceState.REMOVED), _LOST),
    **dict.fromkeys(("down", "withdrawn", SliceState.DELETING, SliceState.GONE), _ENDED),
}
"""Where decisions lead, as far as a picture tells states apart; others change nothing of it. While the cloud
has a request, which may be for days, it is waited for: hosts come up from `booting` on."""


class SliceTimeline(Struct, frozen=True):
    """Spans in percent of the picture, how long each state lasted in all, and the times below it."""

    segments: tuple[Segment, ...]
    shares: tuple[Share, ...]
    times: tuple[str, ...]
    said: str


def draw_slice(told: Sequence[Mapping[str, Any]], now: float) -> SliceTimeline | None:
    """`told` are the decisions about a slice, oldest first; None where they tell of no state."""
    changes: list[tuple[float, str]] = []
    for row in told:
        at, phase = parse_timestamp(str(row["at"])), LEADS.get(str(row["action"]))
        if at is not None and phase is not None and (not changes or changes[-1][1] != phase):
            changes.append((at, phase))
    changes = changes[-SHOWN:]
    if not changes:
        return None
    begin, end = changes[0][0], max(now, changes[-1][0] + 1.0)
    ends = [*(at for at, _ in changes[1:]), end]
    length, segments, sums = end - begin, [], dict.fromkeys(TITLES, 0.0)
    for (at, phase), until in zip(changes, ends, strict=True):
        said = f"{TITLES[phase]} for {render_span(until - at)}, from {_time(at, '%m-%d %H:%M')} UTC"
        segments.append(Segment(phase, _percent(at - begin, length), _percent(until - at, length), said))
        sums[phase] += max(0.0, until - at)
    shares = tuple(
        Share(phase, TITLES[phase], 0.0, _percent(spent, length), render_span(spent))
        for phase, spent in sums.items()
        if any(phase == known for _, known in changes)
    )
    form = "%H:%M:%S" if length < 600 else "%H:%M" if length < 86_400 else "%m-%d %H:%M"
    times = tuple(_time(at, form) for at in (begin, begin + length / 2, end))
    return SliceTimeline(tuple(segments), shares, times, "; ".join(f"{s.title} {s.said}" for s in shares))


def _percent(part: float, whole: float) -> float:
    return round(max(0.0, 100 * part / whole), 3)


def _time(at: float, form: str) -> str:
    return datetime.fromtimestamp(at, UTC).strftime(form)
