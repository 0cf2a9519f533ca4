"""What the page of a run shows: its manifest as times, shares, tables and texts. Pure.

Places in pictures are percent of their width, so that text beside them keeps its size on every screen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.lib.codec import to_data
from tpuctl.lib.text import Place, counted, fold_label, fold_workers, group_equal
from tpuctl.lib.time import parse_timestamp, render_moment, render_seconds
from tpuctl.model.attempts import RunTotals
from tpuctl.model.disks import DiskMode
from tpuctl.model.processes import parse_place, place_of
from tpuctl.provenance.compare import OF_A_BOOT
from tpuctl.provenance.manifest import Row
from tpuctl.provenance.phases import cost_by_phase, phase_seconds, split_phases

TITLES: Mapping[str, str] = {
    "waiting": "waiting for capacity",
    "provisioning": "provisioning",
    "preparing": "preparing",
    "first_step": "first step",
    "training": "training",
    "lost": "lost since the last checkpoint",
    "unseen": "not seen, may have been paid",
}
"""In the order in which an attempt goes through them, with their names for people."""
RUNNING = "running"
"""Of programs that do not say when their first step is over."""
BARS_MAX, EVENTS_MAX, COLUMNS_MAX = 30, 200, 12
"""Attempts in the picture, events of an attempt, and columns of the table of hosts: enough for a reader, and a
page that opens."""
VALUES_MAX, SPANS_MAX = 8, 12
"""Values by which hosts are told apart: a column with more, such as a clock, has one for nearly every host.
Spans of workers that are written out."""
MANIFEST_MAX = 300_000
"""Characters of the manifest in a page."""
_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~])"
)
"""Control sequences of terminals (ECMA-48, section 5.4), and of xterm for titles and links."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Segment(Struct, frozen=True):
    """A part of a bar, in percent of the picture."""

    phase: str
    x: float
    width: float
    said: str


class Bar(Struct, frozen=True):
    """One attempt in the timeline. `end` is where it ended, in percent; None while it goes on."""

    title: str
    said: str
    segments: tuple[Segment, ...]
    end: float | None = None
    mark: str = ""
    """How it ended: `good`, `bad` or `lost`."""


class Share(Struct, frozen=True):
    """A phase in a stacked bar, and in its legend."""

    phase: str
    title: str
    x: float
    width: float
    said: str


class Hosts(Struct, frozen=True):
    """The hosts of the last attempt: what all share, and a table of what they do not, equal rows folded.
    `varied` are columns with a value for nearly every host, and how many."""

    count: int
    same: tuple[tuple[str, str], ...]
    varied: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    each: tuple[tuple[str, ...], ...]
    """One row per host: worker, host name, address, end."""


class LogEnd(Struct, frozen=True):
    """The last lines of workers that wrote the same."""

    label: str
    stream: str
    text: str
    failed: bool = False


def plain(text: str) -> str:
    """What a terminal would be left with: no control sequences, of a line that was written over the last state.
    Other control characters are left out."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in _ANSI.sub("", text).split("\n"))
    return _CONTROL.sub("", "\n".join(lines))


def timeline(manifest: Row, now: float) -> tuple[list[Bar], list[str]]:
    """The newest attempts as bars, and the times at the beginning, in the middle and at the end of them."""
    attempts = manifest["attempts"][-BARS_MAX:]
    spans = [_span_of(row, now) for row in attempts]
    start = parse_timestamp(str(manifest["run"].get("created")))
    if start is None or len(attempts) < len(manifest["attempts"]):
        start = min((begin for begin, _ in spans), default=now)
    start = min([start, *(begin for begin, _ in spans)])  # phases are rounded
    last = max((end for _, end in spans), default=now)
    length = max(last - start, 1.0)
    names = phase_names(manifest)
    bars = [_bar(row, span, start, length, names) for row, span in zip(attempts, spans, strict=True)]
    form = "%H:%M:%S" if length < 600 else "%H:%M" if length < 86_400 else "%m-%d %H:%M"
    times = (start, start + length / 2, start + length)
    return bars, [datetime.fromtimestamp(at, UTC).strftime(form) for at in times]


def _span_of(row: Row, now: float) -> tuple[float, float]:
    """From when an attempt was waited for to its end."""
    end = parse_timestamp(str(row.get("ended"))) or now
    return end - sum(_lengths(row, end).values()), end


def _lengths(row: Row, end: float) -> dict[str, float]:
    """Its phases; of what earlier versions wrote the time between start and end."""
    found = split_phases(row.get("phases") or {})
    started = parse_timestamp(str(row.get("started")))
    if not any(found.values()) and started is not None:
        found["training"] = max(0.0, end - started)
    return found


def _bar(row: Row, span: tuple[float, float], start: float, length: float, names: Mapping[str, str]) -> Bar:
    at, segments = span[0], []
    for phase, seconds in _lengths(row, span[1]).items():
        if seconds > 0:
            said = f"{names[phase]}: {render_seconds(seconds)}"
            segments.append(Segment(phase, _percent(at - start, length), _percent(seconds, length), said))
            at += seconds
    over = bool(row.get("ended")) and bool(row.get("cause"))
    cause = str(row.get("cause") or ("goes on" if row.get("number") else "waits"))
    title = f"attempt {row['number']}" if row.get("number") else "now"
    said = f"{cause}, {render_seconds(span[1] - span[0])}"
    mark = {"succeeded": "good", "stopped": "good", "preempted": "lost", "host-lost": "lost"}.get(cause, "bad")
    return Bar(
        title, said, tuple(segments), _percent(span[1] - start, length) if over else None, mark if over else ""
    )


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 3)


def phase_names(manifest: Row) -> dict[str, str]:
    """What phases are called for this run."""
    known = any((row.get("phases") or {}).get("training_s") is not None for row in manifest["attempts"])
    return {**TITLES, "training": TITLES["training"] if known else RUNNING}


def time_shares(manifest: Row) -> list[Share]:
    """All attempts together by phase, of their time."""
    return _shares(manifest, phase_seconds(manifest["attempts"]), render_seconds)


def cost_shares(manifest: Row, spent: RunTotals) -> list[Share]:
    """What phases cost, as the end of the manifest has it; where it has none, of what is `spent` so far."""
    said = (manifest.get("end") or {}).get("by_phase") or to_data(cost_by_phase(manifest["attempts"], spent))
    return _shares(manifest, {name: row["usd"] or 0.0 for name, row in said.items()}, lambda usd: f"${usd:.2f}")


def _shares(manifest: Row, amounts: Mapping[str, float], words: Callable[[float], str]) -> list[Share]:
    whole, names, at, found = sum(amounts.values()), phase_names(manifest), 0.0, []
    for phase, title in names.items():
        amount = amounts.get(phase, 0.0)
        if amount > 0:
            width = _percent(amount, whole)
            said = f"{words(amount)}, {width:.0f}%" if width >= 1 else f"{words(amount)}, under 1%"
            found.append(Share(phase, title, at, width, said))
            at += width
    return found


def hosts(manifest: Row) -> Hosts | None:
    """The hosts of the last attempt that has any."""
    attempt = next((row for row in reversed(manifest["attempts"]) if row.get("hosts")), None)
    if attempt is None:
        return None
    rows = sorted((dict(row) for row in attempt["hosts"]), key=lambda row: int(row["worker"]))
    ends = {int(row["worker"]): end_said(row) for row in attempt.get("exits") or ()}
    keys = dict.fromkeys(key for row in rows for key in row if key not in OF_A_BOOT and key != "worker")
    values = {key: {str(row.get(key) or "–") for row in rows} for key in keys}
    same = tuple((key, next(iter(found))) for key, found in values.items() if len(found) == 1)
    differing = tuple(key for key, found in values.items() if 1 < len(found) <= VALUES_MAX)[:COLUMNS_MAX]
    varied = tuple(
        f"{key} ({counted(len(found), 'value')})" for key, found in values.items() if len(found) > VALUES_MAX
    )

    def shown(row: Row) -> tuple[str, ...]:
        own = tuple(str(row.get(key) or "–") for key in differing)
        return (*own, ends.get(int(row["worker"]), "–"))

    folded = [
        (_few([int(row["worker"]) for row in group]), *cells) for cells, group in group_equal(rows, shown)
    ]
    each = tuple(
        (str(row["worker"]), row.get("hostname") or "–", row.get("address") or "–", shown(row)[-1])
        for row in rows
    )
    return Hosts(len(rows), same, varied, (*differing, "exit"), tuple(folded), each)


def _few(workers: Sequence[Place]) -> str:
    """Workers in as many words as a table bears."""
    spans = fold_workers(workers).split(",")
    if len(spans) <= SPANS_MAX:
        return ", ".join(spans)
    return f"{', '.join(spans[:SPANS_MAX])}, … ({len(workers)} in all)"


def end_said(row: Row) -> str:
    """How a worker ended, in words."""
    if row.get("signal") is not None:
        said = f"signal {row['signal']}"
    elif row.get("exit_status") is not None:
        said = f"exit {row['exit_status']}"
    else:
        said = "not seen"
    return f"{said} ({row['note']})" if row.get("note") else said


def place_of_row(row: Row) -> Place:
    """The worker that a row of an exit is of, or the one of its processes that it tells of."""
    process = row.get("process")
    return place_of(int(row["worker"]), None if process is None else int(process))


def attempt_rows(manifest: Row, steps: Mapping[int, float | None]) -> list[dict[str, Any]]:
    """One row per attempt, for the table; `steps` are known of one that goes on, too."""
    found = []
    for row in manifest["attempts"]:
        if not row.get("number"):
            continue  # time between attempts
        running = (row.get("phases") or {}).get("running_s")
        failure = row.get("failure") or {}
        ends = group_equal(row.get("exits") or (), end_said)
        said = "; ".join(f"{_few([place_of_row(e) for e in group])}: {end}" for end, group in ends)
        events = row.get("timeline") or ()
        step = row["step"] if row.get("step") is not None else steps.get(row["number"])
        found.append(
            {
                "number": row["number"],
                "place": " ".join(
                    str(part) for part in (row["slice"].get("cloud_name"), row["slice"].get("zone")) if part
                ),
                "started": row.get("started") or "–",
                "ran": "–" if running is None else render_seconds(running),
                "cause": row.get("cause") or "goes on",
                "why": failure.get("signature") or row.get("why") or "",
                "ends": said,
                "step": "–" if step is None else f"{step:.12g}",
                "events": list(events[-EVENTS_MAX:]),
            }
        )
    return found


def storage(manifest: Row) -> list[tuple[str, str]]:
    """Disks, mounts and checkpoints as kind and words: those of the last attempt, before it those asked for."""
    found = manifest["attempts"][-1] if manifest["attempts"] else manifest["slice"]
    rows = [("Disk", _disk_words(row)) for row in found.get("disks") or ()]
    rows += [("Mount", _mount_words(row)) for row in found.get("mounts") or ()]
    place = manifest["command"].get("checkpoint_dir")
    return [*rows, ("Checkpoints", str(place))] if place else rows


_MODES = {str(mode): mode.short for mode in DiskMode}
"""Attempts have the short word already, what was asked for has the API's."""


def _disk_words(row: Row) -> str:
    """`data-g1 at /mnt/data, ro, pd-balanced, generation 1 of data, snapshot s-1`."""
    mode = str(row["mode"])
    words = [f"{row['name']} at {row['path']}", _MODES.get(mode, mode), row.get("type")]
    if row.get("generation"):
        words.append(f"generation {row['generation']}" + (f" of {row['master']}" if row.get("master") else ""))
    if row.get("snapshot"):
        words.append(f"snapshot {row['snapshot']}")
    return ", ".join(str(each) for each in words if each)


def _mount_words(row: Row) -> str:
    """`gs://b/sets at /mnt/sets, train, gcsfuse 3.4.0`."""
    source = row.get("source") or "gs://" + "/".join(filter(None, (row.get("bucket"), row.get("directory"))))
    version = f"gcsfuse {row['gcsfuse']}" if row.get("gcsfuse") else None
    return ", ".join(str(each) for each in (f"{source} at {row['path']}", row.get("profile"), version) if each)


def last_failure(manifest: Row) -> dict[str, Any] | None:
    """The failure of the last attempt that failed, with its number; None where none did."""
    found = next((row for row in reversed(manifest["attempts"]) if row.get("failure")), None)
    return None if found is None else {**found["failure"], "attempt": found["number"]}


def fold_logs(ends: Sequence[LogEnd], slice_name: str) -> list[LogEnd]:
    """Ends of logs of which the label is a worker or one of its processes: equal texts once, of failed ones
    first."""
    groups = group_equal(ends, lambda end: (end.stream, end.text, end.failed))
    named = [
        replace(group[0], label=fold_label(slice_name, [parse_place(end.label) for end in group]))
        for _, group in groups
    ]
    return sorted(named, key=lambda end: not end.failed)


def short_manifest(manifest: Row, length: int) -> tuple[dict[str, Any], bool]:
    """The manifest as it is shown, and whether something was left out: of one that is longer than a page bears
    (`length` in characters) what there is per host."""
    whole = dict(manifest)
    if length <= MANIFEST_MAX:
        return whole, False
    attempts = [
        {
            **row,
            **{
                key: counted(len(row[key]), "row") + " not shown"
                for key in ("hosts", "exits", "timeline")
                if row.get(key)
            },
        }
        for row in whole["attempts"][-BARS_MAX:]
    ]
    return {**whole, "attempts": attempts}, True


def moment(at: float) -> str:
    """A time for people."""
    return render_moment(at).replace("T", " ").replace("Z", " UTC")
