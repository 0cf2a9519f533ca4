"""One page about a run: looks at its manifest, its record and the ends of its logs, and renders them.

The page needs nothing but itself: no script, no request, and its policy forbids both. Whatever comes from logs
or manifests is escaped by the template, without control sequences, and without what looks like a secret.
"""

from __future__ import annotations

import base64
import hashlib
from types import CodeType
from typing import Any

import jinja2
import yaml
from jinja2.bccache import Bucket
from markupsafe import Markup
from msgspec import Struct

from tpuctl import __version__
from tpuctl.engine.services import Services
from tpuctl.errors import BadManifestError
from tpuctl.lib.codec import to_data
from tpuctl.lib.text import fold_workers
from tpuctl.model.attempts import RunTotals
from tpuctl.model.processes import split_stream
from tpuctl.model.records import RunRecord, RunState
from tpuctl.model.shipped_files import load_accelerators, load_secret_patterns, read_template
from tpuctl.provenance.build import build_attempt, build_start, build_totals
from tpuctl.provenance.manifest import SCHEMA, Row, canonical, typed
from tpuctl.provenance.parts import (
    PARTS,
    current_part,
    current_totals,
    load_manifest,
    load_parts,
    read_manifest,
)
from tpuctl.state.repository import find_slice, get_run, list_attempts
from tpuctl.views import report_page as page
from tpuctl.views.metrics import curves, run_metrics

LOGS_MAX, LOG_MIN, LOG_MAX = 400_000, 600, 6_000
"""Bytes of log ends in a page, and of each worker's streams: least and most."""
CURVES_MAX = 12
"""Numbers of the program that are drawn."""
FAILED_MAX = 8
"""Workers of which the ends of logs are open: those that failed."""


class ReportPage(Struct, frozen=True):
    """The page of a run."""

    run_id: str
    html: str


def make_report(services: Services, source: str) -> ReportPage:
    """The page of the run `source`, or of the manifest in the file of that name, which has no logs.

    Raises NotFoundError or BadManifestError.
    """
    facts = report_facts(services, source)
    style = read_template("report.css").decode()
    document = {
        "style": Markup(style),  # noqa: S704 (ours)
        "style_digest": base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
    }
    html = templates().get_template("report.html.j2").render({**facts, **document})
    return ReportPage(str(facts["run"]["id"]), html)


class _CompiledOnce(jinja2.BytecodeCache):
    """In the memory of this process: environments differ in what they know, and not in their templates."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType | None] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._codes[bucket.key, bucket.checksum] = bucket.code


_COMPILED = _CompiledOnce()


def templates(**known: Any) -> jinja2.Environment:
    """The pages that travel with tpuctl, which all of them know what is `known`. All that is put into them is
    escaped."""
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: read_template(name).decode()),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_COMPILED,
    )
    made.globals.update(known)
    return made


def report_facts(services: Services, source: str) -> dict[str, Any]:
    """What the template of a report wants to know of a run, or of the manifest in a file. Raises as
    `make_report`."""
    run, written = None, read_manifest(source)
    if written is None:
        run = get_run(services, source).record
        written = _manifest(services, run)
    end = written.get("end") or {}
    goodput = build_totals(written["attempts"], chips=None, usd_per_hour=None).goodput
    unseen = ((end.get("by_phase") or {}).get("unseen") or {}).get("usd")
    spent, attempts = RunTotals(goodput, end.get("chip_hours"), end.get("usd"), unseen), written["attempts"]
    if run is not None and not run.state.final:
        stored = find_slice(services, run.slice_name)
        slice_ = stored.record if stored is not None else None
        spent = current_totals(services, run, slice_)
        attempts = [*attempts, current_part(services, run, slice_, load_parts(services, run.id))]
    facts = {**written, "attempts": attempts}
    return _facts(services, run, facts, written, spent)


def _manifest(services: Services, run: RunRecord) -> dict[str, Any]:
    """The manifest of a run; of one that has none what its record tells, in the same form without digests."""
    try:
        return load_manifest(services, run.id)
    except BadManifestError:
        if PARTS.names(services, f"{run.id}/"):
            raise
    stored = find_slice(services, run.slice_name)
    start = build_start(run, stored.record if stored else None, project=services.project, version="")
    rows: list[Row] = []
    since = run.created_at
    for attempt in list_attempts(services, run.id):
        before = rows[-1] if rows else None
        rows.append(build_attempt(run, attempt, run.slice_name, since=since, before=before))
        since = attempt.ended_at or since
    return {"schema": SCHEMA, **start, "attempts": rows, "end": None, "chain": []}


def _facts(
    services: Services, run: RunRecord | None, manifest: Row, written: Row, spent: RunTotals
) -> dict[str, Any]:
    """`written`: the manifest without what goes on."""
    now = services.store.now()
    end = manifest.get("end") or {}
    state = str(run.state) if run is not None else end.get("state") or "not over"
    bars, times = page.timeline(manifest, now)
    left_out = len(manifest["attempts"]) - len(bars)
    numbers = [] if run is None or not run.spec.progress else run_metrics(services, run)
    text, short = _manifest_text(written)
    return {
        "version": __version__,
        "made": page.moment(now),
        "run": manifest["run"],
        "command": manifest["command"],
        "slice": manifest["slice"],
        "code": manifest["code"],
        "environment": manifest.get("environment"),
        "data": manifest.get("data") or [],
        "storage": page.storage(manifest),
        "synthetic": bool(manifest.get("synthetic")),
        "state": state,
        "good": state in ("succeeded", "running"),
        "bad": state in ("failed", "gave-up"),
        "reason": run.reason if run is not None else end.get("reason") or "",
        "ended": end.get("ended"),
        "spent": spent,
        "prices": load_accelerators().prices_note if spent.usd is not None else "",
        "bars": bars,
        "left_out": left_out,
        "times": times,
        "time_shares": page.time_shares(manifest),
        "cost_shares": page.cost_shares(manifest, spent) if spent.usd else [],
        "curves": curves(numbers)[:CURVES_MAX],
        "attempts": page.attempt_rows(manifest, {each.number: each.last_step for each in numbers}),
        "failure": page.last_failure(manifest),
        "hosts": page.hosts(manifest),
        "logs": _log_ends(services, run),
        "log_attempt": run.attempt.number if run is not None and run.attempt else None,
        "manifest": text,
        "manifest_short": short,
        "chain": manifest.get("chain") or [],
        "sealed": bool(end),
    }


def _manifest_text(written: Row) -> tuple[str, bool]:
    """The manifest as YAML, and whether something of it was left out."""
    shown, short = page.short_manifest(written, len(canonical(written)))
    ordered = shown if short else to_data(typed(shown))
    text = yaml.dump(ordered, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=100)
    cut = text[: page.MANIFEST_MAX]
    return page.plain(load_secret_patterns().redact(cut)), short or len(cut) < len(text)


_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def _log_ends(services: Services, run: RunRecord | None) -> list[page.LogEnd]:
    """What the workers of the last attempt wrote last, as far as it is on this machine."""
    if run is None or run.attempt is None:
        return []
    attempt, patterns = run.attempt, load_secret_patterns()
    limit = max(LOG_MIN, min(LOG_MAX, LOGS_MAX // (2 * max(len(attempt.workers), 1))))
    failed = {end.worker for end in attempt.ends if end.signal is not None or end.exit_status not in (0, None)}
    if attempt.failure is not None and attempt.failure.worker is not None:
        failed = {attempt.failure.worker}
    open_ = set(sorted(failed)[:FAILED_MAX]) if run.state is not RunState.SUCCEEDED else set()
    found = []
    for worker in attempt.workers:
        for stream in attempt.streams:
            data = services.logs.tail(run.id, attempt.number, worker, stream, limit)
            if len(data) == limit:
                data = data.partition(b"\n")[2] or data  # the first line is cut
            text = patterns.redact(page.plain(data.decode("utf-8", "replace"))).strip("\n")
            if text.strip():
                place, kind = split_stream(worker, stream)
                found.append(page.LogEnd(fold_workers([place]), kind, text, worker in open_))
    return page.fold_logs(found, run.slice_name)
