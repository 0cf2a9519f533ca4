"""What the pages show: the views of `ls`, `status`, `runs` and `capacity`, as templates want them.

The store says how things stand. The cloud is asked about TPUs only while somebody looks, and no page waits for
it longer than a moment.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.inventory.listing import TPUS_OF, TpuLists, list_tpus
from tpuctl.lib.time import parse_timestamp, render_age, render_moment, render_span
from tpuctl.model.cloud import Listing
from tpuctl.model.records import RunRecord, RunState, SliceRecord, SliceState
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.provenance.compare import compare
from tpuctl.provenance.parts import load_manifest
from tpuctl.slices.capacity_notes import list_notes
from tpuctl.state.repository import get_run, newest_first, readable_slices, runs_under_way
from tpuctl.views.decisions import decisions
from tpuctl.views.report import report_facts
from tpuctl.views.run_status import next_commands
from tpuctl.views.runs import is_listed, run_row
from tpuctl.views.slice_timeline import draw_slice
from tpuctl.views.slices import fleet_rows, slice_status
from tpuctl.watch.cycle import list_heartbeats, watchdog_health
from tpuctl.watch.heartbeat import is_late, render_counts
from tpuctl.watch.pause import paused_why

FIRST_S, AGAIN_S = 1.0, 2.0
"""How long the first page waits for the cloud, and for how long it is then left alone: at least as long as it
took to answer, so that a slow API is not asked all the time."""
OLD_S = 15.0
"""What was read longer ago is called old."""
RUNS_SHOWN = 100
"""Of the list of runs, on one page."""
DECISIONS_SHOWN = 200
DAYS_SHOWN = 30
GOOD = frozenset({"ready", "running", "succeeded", "done", "ok"})
BAD = frozenset({"failed", "gave-up", "refused", "lost", "unwanted", "damaged", "removed", "blocked", "blind"})


class CloudLook:
    """The TPUs of the project as they were a moment ago, read in the background."""

    def __init__(self, services: Services, read: Callable[[Services], TpuLists] = list_tpus) -> None:
        self._services, self._read = services, read
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._found: TpuLists | None = None
        self._why = "the cloud has not answered yet"
        self._due, self._read_at = 0.0, time.monotonic()
        self._busy = False

    def latest(self) -> tuple[TpuLists | None, str]:
        """What was read last, None where nothing was; and why it is not as new as it should be."""
        with self._lock:
            if not self._busy and time.monotonic() >= self._due:
                self._busy = True
                threading.Thread(target=self._look, daemon=True).start()
        self._done.wait(FIRST_S)
        age = time.monotonic() - self._read_at
        late = f"the cloud was read {render_span(age)} ago" if self._found and age > OLD_S else ""
        return self._found, "; ".join(filter(None, (self._why, late)))

    def _look(self) -> None:
        begun, why = time.monotonic(), "the cloud could not be read"
        try:
            self._found, self._read_at, why = self._read(self._services), begun, ""
        except TpuctlError as error:
            why = error.message
        finally:
            self._why = why
            took = time.monotonic() - begun
            self._due, self._busy = time.monotonic() + max(AGAIN_S, took), False
            self._done.set()


class Moments(Struct, frozen=True):
    """Times as a page has them: how long ago, or on one that is read `later` in UTC."""

    now: float
    later: bool = False

    def age(self, at: float) -> str:
        return _utc(at) if self.later else render_age(self.now - at)

    def since(self, at: float) -> str:
        return f"since {_utc(at)}" if self.later else f"for {render_span(self.now - at)}"

    def ago(self, at: float) -> str:
        return _utc(at) if self.later else f"{render_span(max(0.0, self.now - at))} ago"

    def until(self, at: float) -> str:
        return _utc(at) if self.later else f"in {render_span(max(0.0, at - self.now))}"


def _utc(at: float) -> str:
    return render_moment(at)[:16].replace("T", " ")


class RunsAsked(Struct, frozen=True):
    """What of the runs is shown; an empty value asks for nothing. `text` is looked for in ids, commands, slices
    and reasons; `page` counts from 1."""

    state: str = ""
    group: str = ""
    tag: str = ""
    owner: str = ""
    text: str = ""
    page: int = 1


def tone(state: str) -> str:
    """The class of a badge; the word in it says the same to those who see no colours."""
    return "good" if state in GOOD else "bad" if state in BAD else ""


def look_at_fleet(
    services: Services, found: TpuLists | None, why: str, *, later: bool = False
) -> dict[str, Any]:
    """Slices and other TPUs, watchdogs, and what needs a person. `found` is what the cloud has as far as it is
    known, `why` says why that is not all; the page is read at once, or some time `later`."""
    records = {each.name: each for each in readable_slices(services)[0]}
    zones = frozenset(place.spec.zone for each in records.values() for place in each.places)
    rows, unread = fleet_rows(services, found or TpuLists(Listing((), zones), Listing((), zones)))
    moments, busy = Moments(services.store.now(), later), _busy_slices(services)
    shown = [_slice_cells(row, records.get(row["name"]), busy, moments) for row in rows]
    paid = [row["usd_per_hour"] for row in rows if row["payer"] == "you" and row["usd_per_hour"] is not None]
    live = [row for row in shown if row["managed"]]
    return {
        "title": "Fleet",
        "rows": shown,
        "age": "Created" if later else "Age",
        "tiles": [
            ("Slices ready", f"{sum(row['state'] == SliceState.READY for row in live)} of {len(live)}"),
            ("Hosts", f"{sum(row['hosts'] or 0 for row in live):,}"),
            ("Runs under way", str(sum(map(len, busy.values())))),
            ("You pay", f"${sum(paid):,.2f} per hour" if paid else "–"),
        ],
        "remarks": [row["remark"] for row in rows if row["remark"]],
        "unread": "; ".join(filter(None, (why, _unread(unread, found)))),
        "paused": paused_why(services),
        "watchdogs": [_watchdog(beat, moments) for beat in list_heartbeats(services)],
        "health": watchdog_health(services),
    }


def _unread(zones: Sequence[str], found: TpuLists | None) -> str:
    """What of the cloud is not on the page, so that absence proves nothing."""
    refused = found.refused if found is not None else {}
    parts = [*zones, *(f"{TPUS_OF[api]} ({error.message})" for api, error in refused.items())]
    return f"not read: {', '.join(parts)}; what is there is unknown" if parts and found is not None else ""


def _busy_slices(services: Services) -> Mapping[str, list[RunRecord]]:
    busy: defaultdict[str, list[RunRecord]] = defaultdict(list)
    for run in runs_under_way(services):
        busy[run.slice_name].append(run)
    return busy


def _slice_cells(
    row: Mapping[str, Any],
    record: SliceRecord | None,
    busy: Mapping[str, list[RunRecord]],
    moments: Moments,
) -> dict[str, Any]:
    created = parse_timestamp(row["created"] or "")
    waits, since = _waiting(record) if record is not None and row["managed"] else ("", None)
    ends = record.lifetime.expires_at if record is not None and record.lifetime is not None else None
    return {
        **row,
        "tone": "bad" if row["remark"] else tone(row["state"]),
        "age": "" if created is None else moments.age(created),
        "waits": waits,
        "since": "" if since is None else moments.since(since),
        "ends": "" if ends is None else moments.until(ends),
        "runs": [run.id for run in busy.get(row["name"], ())] if row["managed"] else [],
        "hour": _money(row["usd_per_hour"]) if row["payer"] == "you" else "grant" * (row["payer"] == "grant"),
    }


def _waiting(record: SliceRecord) -> tuple[str, float | None]:
    """What a slice waits for, and since when."""
    if record.state is SliceState.READY:
        return "", None
    life = record.incarnation
    since = (life.requested_at if life is not None else None) or record.created_at
    return (record.loss.detail if record.loss is not None else "") or str(record.state).lower(), since


def _money(usd: float | None) -> str:
    return "" if usd is None else f"${usd:,.2f}"


def _watchdog(beat: Any, moments: Moments) -> dict[str, Any]:
    return {
        "host": beat.host,
        "user": beat.user,
        "last": moments.ago(beat.at),
        "late": is_late(beat, moments.now),
        "counts": render_counts(beat),
        "troubles": [f"{each.subject} is {each.result}: {each.why}" for each in beat.troubles],
        "note": beat.note,
    }


def look_at_slice(services: Services, name: str) -> dict[str, Any]:
    """One slice: how it stands, its hosts, and what was decided about it. Raises as `status` does."""
    return slice_facts(slice_status(services, name), decisions(services, name), services.store.now())


def slice_facts(status: Mapping[str, Any], told: Sequence[Mapping[str, Any]], now: float) -> dict[str, Any]:
    """What the page of a slice shows of its status and of what was decided about it."""
    own = [row for row in told if row["subject"] == status["name"]]
    shown = {
        "timeline": draw_slice(own, now),
        "facts": status,
        "tone": tone(status["state"]),
        "decisions": told[-DECISIONS_SHOWN:][::-1],
    }
    return {"title": status["name"], **shown}


def look_at_runs(services: Services, stored: Sequence[RunRecord], asked: RunsAsked) -> dict[str, Any]:
    """Of those `stored` the runs that are asked for, newest first, a page of them; and what one may ask for."""
    runs = newest_first(stored, services.store.now())
    tags = [asked.tag] if asked.tag else []
    chosen = [
        run
        for run in runs
        if is_listed(run, asked.group or None, tags)
        and asked.state in ("", str(run.state))
        and asked.owner in ("", run.owner)
        and _has(run, asked.text.casefold())
    ]
    pages = max(1, -(-len(chosen) // RUNS_SHOWN))
    page = min(max(1, asked.page), pages)
    rows = [run_row(services, run) for run in chosen[(page - 1) * RUNS_SHOWN : page * RUNS_SHOWN]]
    return {
        "title": "Runs",
        "rows": [{**row, "tone": tone(row["state"]), "line": shlex.join(row["command"])} for row in rows],
        "asked": asked,
        "count": len(chosen),
        "all": len(runs),
        "page": page,
        "pages": pages,
        "states": [str(state) for state in RunState],
        "groups": sorted({run.spec.group for run in runs if run.spec.group}),
        "owners": sorted({run.owner for run in runs}),
    }


def _has(run: RunRecord, text: str) -> bool:
    return not text or any(
        text in each.casefold() for each in (run.id, run.slice_name, run.reason, " ".join(run.spec.argv))
    )


def look_at_money(services: Services, runs: Sequence[RunRecord]) -> dict[str, Any]:
    """What `runs` cost by day, owner and group; what is idle; where there was capacity."""
    now = services.store.now()
    busy = {run.slice_name for run in runs if not run.state.final}
    idle = [
        each.name
        for each in readable_slices(services)[0]
        if each.state is SliceState.READY and each.name not in busy
    ]
    return {
        "title": "Money and capacity",
        "days": _sums(runs, lambda run: time.strftime("%Y-%m-%d", time.gmtime(run.ended_at or now)))[
            -DAYS_SHOWN:
        ],
        "owners": _sums(runs, lambda run: run.owner),
        "groups": _sums(runs, lambda run: run.spec.group or "none"),
        "idle": sorted(idle),
        "prices": load_accelerators().prices_note,
        "notes": len(list_notes(services)),
    }


def _sums(
    runs: Iterable[RunRecord], key: Callable[[RunRecord], str]
) -> Sequence[tuple[str, int, str, str, float]]:
    """By key: runs that are over, their chip hours and list price, and that in percent of the greatest."""
    found: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for run in runs:
        if run.totals is not None:
            sums = found[key(run)]
            sums[0] += 1
            sums[1] += run.totals.chip_hours or 0.0
            sums[2] += run.totals.usd or 0.0
    most = max((usd for _, _, usd in found.values()), default=0.0) or 1.0
    return [
        (name, int(count), f"{hours:,.1f}", _money(usd), round(100 * usd / most, 1))
        for name, (count, hours, usd) in sorted(found.items())
    ]


def look_at_run(services: Services, run_id: str) -> dict[str, Any]:
    """A run: its report, and what to type next. Raises NotFoundError."""
    run = get_run(services, run_id).record
    facts = report_facts(services, run.id)
    return {**facts, "title": run.id, "next": next_commands(run), "made": ""}


def look_at_comparison(services: Services, runs: Sequence[str]) -> dict[str, Any]:
    """In what the manifests of two runs differ. Raises UsageError, NotFoundError or BadManifestError."""
    if len(runs) != 2:
        raise UsageError("two runs are compared", hint="mark two runs of the list")
    left, right = (load_manifest(services, get_run(services, each).record.id) for each in runs)
    rows = [structs.asdict(each) for each in compare(left, right)]
    return {"title": f"{runs[0]} and {runs[1]}", "left": runs[0], "right": runs[1], "rows": rows}
