"""The pages as files: the same as those that are served, without what needs a server, linked among each other.

They lie in one folder, so that a link is a name. Each page has a `basis`, which is another exactly when it has
to be written again. Pages of runs that are over are not even made again.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup
from msgspec import Struct

from tpuctl import __version__
from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError
from tpuctl.inventory.listing import TpuLists, list_tpus
from tpuctl.lib.codec import to_data
from tpuctl.lib.names import is_run_id, is_slice_name
from tpuctl.lib.time import render_moment
from tpuctl.model.records import RunRecord, SliceRecord, SliceState
from tpuctl.model.shipped_files import load_secret_patterns, read_template
from tpuctl.slices.capacity_notes import list_notes
from tpuctl.state.repository import newest_first, readable_runs, readable_slices
from tpuctl.ui.look import RunsAsked, look_at_fleet, look_at_money, look_at_run, look_at_runs, slice_facts
from tpuctl.views.decisions import slice_decisions
from tpuctl.views.plot import render_capacity
from tpuctl.views.report import templates
from tpuctl.views.slices import describe_slice

INDEX = "index.html"
NAMES = {"fleet": INDEX, "runs": "runs.html", "money": "money.html"}
RUNS_MAX, SLICES_MAX = 50, 50
"""Runs and slices that have a page of their own: those under way before others, and newer ones before older."""
SETTLED_S = 900.0
"""So long after its end the manifest of a run is whole, and its last output is here."""
HOUR_S = 3600.0

Facts = Mapping[str, Any]


class StaticPage(Struct, frozen=True):
    """A page; `render` makes it, with the words for when it is written."""

    name: str
    basis: str
    render: Callable[[str], str]


class StaticSite:
    """All pages, of what the store and the cloud say now. `place` is the address of their folder."""

    def __init__(self, services: Services, place: str) -> None:
        self._services, self._place, self._now = services, place, services.store.now()
        self._patterns = load_secret_patterns()
        self._slices = _slices_shown(readable_slices(services)[0])
        self._stored = readable_runs(services)[0]
        self._runs = _runs_shown(newest_first(self._stored, self._now))
        self._templates = templates(address=self._address, live=False)

    @property
    def written(self) -> str:
        """Now, in words."""
        return render_moment(self._now).replace("T", " ").replace("Z", " UTC")

    def index(self) -> StaticPage:
        """The page to begin with, which is another each time."""
        facts = look_at_fleet(self._services, *self._cloud(), later=True)
        page = self._page(INDEX, "Fleet", "ui_fleet.html.j2", facts)
        return StaticPage(INDEX, "", page.render)

    def others(self) -> Iterator[StaticPage]:
        """All but the index. What cannot be shown is a page that says so."""
        runs = look_at_runs(self._services, self._stored, RunsAsked())
        yield self._page("runs.html", "Runs", "ui_runs.html.j2", runs)
        money = {**look_at_money(self._services, self._stored), "picture": self._picture()}
        yield self._page("money.html", "Money and capacity", "ui_money.html.j2", money)
        for name, record in self._slices.items():
            yield self._made(f"slice-{name}.html", "Fleet", "ui_slice.html.j2", partial(self._slice, record))
        for run in self._runs.values():
            yield self._run_page(run)

    def _address(self, kind: str, name: str) -> str:
        """The file of a page; empty for what has none."""
        known: Mapping[str, Mapping[str, object]] = {"slice": self._slices, "run": self._runs}
        return f"{kind}-{name}.html" if name in known.get(kind, {}) else NAMES.get(kind, "")

    def _cloud(self) -> tuple[TpuLists | None, str]:
        try:
            return list_tpus(self._services), ""
        except TpuctlError as error:
            return None, error.message

    @property
    def _hour(self) -> float:
        """As of when pictures are drawn: they are the same for as long as nothing happens."""
        return self._now - self._now % HOUR_S

    def _picture(self) -> str:
        """Of capacity."""
        notes = list_notes(self._services)
        if not notes:
            return ""
        known = max(each.last_ready_at or 0.0 for each in notes)
        picture = render_capacity(notes, max(self._hour, known))
        return f"data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()}"

    def _slice(self, record: SliceRecord) -> Facts:
        told = slice_decisions(self._services, record.name)
        under_way = [run for run in self._stored if not run.state.final]
        return slice_facts(describe_slice(self._services, record, under_way), told, self._hour)

    def _run_page(self, run: RunRecord) -> StaticPage:
        make = partial(self._made, f"run-{run.id}.html", "Runs", "ui_run.html.j2", partial(self._run, run))
        if run.ended_at is None or self._now - run.ended_at < SETTLED_S:
            return make()
        basis = _digest(json.dumps(to_data(run), sort_keys=True) + self._address("slice", run.slice_name))
        return StaticPage(f"run-{run.id}.html", basis, lambda written: make().render(written))

    def _run(self, run: RunRecord) -> Facts:
        facts = look_at_run(self._services, run.id)
        body = self._templates.get_template("report_body.html.j2").render(facts)
        return {**facts, "body": Markup(body)}  # noqa: S704 (rendered and escaped above)

    def _made(self, name: str, section: str, template: str, look: Callable[[], Facts]) -> StaticPage:
        try:
            return self._page(name, section, template, look())
        except TpuctlError as error:
            said = {"title": "This cannot be shown", "said": error.message, "hint": error.hint or ""}
            return self._page(name, section, "ui_error.html.j2", said)

    def _page(self, name: str, section: str, template: str, facts: Facts) -> StaticPage:
        body = self._patterns.redact(self._templates.get_template(template).render(facts=facts))
        style = b"\n".join(map(read_template, ("report.css", "ui.css"))).decode()
        script = read_template("ui_static.js").decode()
        render = partial(
            self._templates.get_template("ui_static.html.j2").render,
            body=Markup(body),  # noqa: S704 (rendered and escaped above)
            title=self._patterns.redact(facts["title"]),
            section=section,
            style=Markup(style),  # noqa: S704 (ours)
            script=Markup(script),  # noqa: S704 (ours)
            style_digest=_base64_digest(style),
            script_digest=_base64_digest(script),
            place=self._place,
            project=self._services.project,
            version=__version__,
        )
        return StaticPage(name, _digest(render(written="")), lambda written: render(written=written))


def _slices_shown(slices: Sequence[SliceRecord]) -> Mapping[str, SliceRecord]:
    """By name. What no slice can be called has no page, whoever wrote it into the store."""
    live = [each for each in slices if each.state is not SliceState.GONE and is_slice_name(each.name)]
    return {each.name: each for each in sorted(live, key=lambda each: -each.created_at)[:SLICES_MAX]}


def _runs_shown(runs: Sequence[RunRecord]) -> Mapping[str, RunRecord]:
    named = [each for each in runs if is_run_id(each.id)]
    return {each.id: each for each in sorted(named, key=lambda each: each.state.final)[:RUNS_MAX]}


def _digest(text: str) -> str:
    return hashlib.sha256(f"{__version__}\n{text}".encode()).hexdigest()[:32]


def _base64_digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
