"""The page of a run: what it shows of runs of all kinds, that nothing in it can act, and how large it gets."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.provenance.samples import a_manifest
from tests.support.builders import a_run, an_attempt
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.lib.codec import to_data
from tpuctl.model.attempts import AttemptPhase, Cause, Failure, Fault, RunTotals, WorkerEnd
from tpuctl.model.records import RunState
from tpuctl.views import report_page as page
from tpuctl.views.report import make_report

PLANTED = "<script>alert(1)</script>"
TOKEN = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"
FAILURE = Failure(
    "module-not-found", Fault.ENVIRONMENT, 1, f"No module {PLANTED}", "not found", "add it", False
)


@pytest.fixture
def services() -> Iterator[MemoryServices]:
    place = MemoryPlace()
    yield place.machine()
    place.close()


def large_manifest() -> dict[str, Any]:
    """100 attempts on 256 hosts, of which one has another kernel."""
    manifest = a_manifest()
    host = {"python": "3.12.4", **{f"fact_{number}": "v" * 40 for number in range(20)}}
    hosts = [
        {"worker": str(i), "kernel": "6.2" if i == 17 else "6.1", "skew": str(i), "boot_id": f"b{i}", **host}
        for i in range(256)
    ]
    exits = [{"worker": i, "exit_status": i % 2, "signal": None} for i in range(256)]
    first = {**manifest["attempts"][0], "hosts": hosts, "exits": exits}
    return {**manifest, "attempts": [{**first, "number": number} for number in range(1, 101)]}


def html_of(services: MemoryServices, tmp_path: Path, manifest: dict[str, Any]) -> str:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(manifest))
    return make_report(services, str(file)).html


def put_run(services: MemoryServices, *, hosts: int = 2, more: str = "", progress: str = "") -> str:
    """A run that failed and is in the store by its record alone, as without a manifest; its workers wrote
    something."""
    attempt = an_attempt(
        state=AttemptPhase.ENDED,
        workers=tuple(range(hosts)),
        started_at=2010.0,
        ended_at=2100.0,
        cause=Cause.FAILED,
        failure=FAILURE,
        ends=(WorkerEnd(0, 1), WorkerEnd(1, 1)),
    )
    run = a_run(attempt=attempt, state=RunState.FAILED, reason=PLANTED, progress=progress)
    services.store.put(run.key, to_data(run), if_generation=0)
    services.store.put(f"attempts/{run.id}/00001", to_data(attempt), if_generation=0)
    for worker in attempt.workers:
        written = f"\x1b[31mloss\x1b[0m 10%\r100%\n{PLANTED}\n{TOKEN}\n{more}rank {worker}\n".encode()
        services.logs.append(run.id, 1, worker, "stdout", written)
    return run.id


def test_disks_mounts_and_checkpoints_are_told_of_the_last_attempt_or_as_asked_for() -> None:
    manifest = a_manifest()
    disk = {"name": "data-g1", "path": "/mnt/data", "mode": "ro", "type": "pd-balanced", "snapshot": "s-1"}
    mount = {"source": "gs://b/sets", "path": "/mnt/sets", "profile": "train", "gcsfuse": "3.4.0"}
    had = {**manifest["attempts"][0], "disks": [{**disk, "master": "data", "generation": 1}], "mounts": [mount]}
    manifest["command"]["checkpoint_dir"] = "gs://b/ckpt"
    assert page.storage({**manifest, "attempts": [had]}) == [
        ("Disk", "data-g1 at /mnt/data, ro, pd-balanced, generation 1 of data, snapshot s-1"),
        ("Mount", "gs://b/sets at /mnt/sets, train, gcsfuse 3.4.0"),
        ("Checkpoints", "gs://b/ckpt"),
    ]
    asked = {**manifest["slice"], "disks": [{"name": "data", "path": "/mnt/data", "mode": "READ_WRITE"}]}
    asked["mounts"] = [{"bucket": "b", "directory": "", "path": "/mnt/b", "profile": "data"}]
    assert page.storage({**manifest, "attempts": [], "slice": asked})[:2] == [
        ("Disk", "data at /mnt/data, rw"),
        ("Mount", "gs://b at /mnt/b, data"),
    ]


class Tags(HTMLParser):
    """Elements that are open, all tags, and all attributes of a page."""

    VOID = frozenset({"meta", "link", "br", "rect", "line", "circle"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def read(html: str) -> Tags:
    found = Tags()
    found.feed(html)
    found.close()
    assert found.open == []
    return found


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("10%\r50%\r100%\nnext", "100%\nnext"),
        ("windows\r\nline", "windows\nline"),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x07", "link"),
        ("\x1b]0;title\x1b\\text\x1b(B", "text"),
        ("a\x00\x00b\tc\x07", "ab\tc"),
        ("bad \ud800 byte", "bad  byte"),
    ],
)
def test_text_of_terminals_is_what_they_would_show(text, shown):
    assert page.plain(text) == shown


def test_phases_of_all_attempts_make_one_bar():
    manifest = a_manifest()
    found = {share.phase: (share.x, share.width, share.said) for share in page.time_shares(manifest)}
    assert list(found) == ["waiting", "provisioning", "preparing", "training", "lost"]
    assert found["waiting"][2] == "3 min, 10%"
    assert found["lost"][2].startswith("5 min, ")
    assert sum(width for _, width, _ in found.values()) == pytest.approx(100, abs=0.01)


def test_the_cost_of_phases_is_read_from_the_manifest_and_made_where_it_has_none():
    manifest = a_manifest()
    written = page.cost_shares(manifest, RunTotals())
    assert [share.phase for share in written] == ["provisioning", "preparing", "training", "lost"]
    usd = [float(share.said.split(",")[0].strip("$")) for share in written]
    assert sum(usd) == pytest.approx(manifest["end"]["usd"], abs=0.02)
    for end in (None, {"usd": manifest["end"]["usd"]}):
        made = page.cost_shares({**manifest, "end": end}, RunTotals(None, None, manifest["end"]["usd"]))
        assert [(share.phase, share.said) for share in made] == [(share.phase, share.said) for share in written]


def test_attempts_stand_one_after_the_other_within_the_picture():
    bars, times = page.timeline(a_manifest(), now=0.0)
    assert [(bar.title, bar.mark) for bar in bars] == [("attempt 1", "lost"), ("attempt 2", "good")]
    spans = [(bar.segments[0].x, bar.segments[-1].x + bar.segments[-1].width) for bar in bars]
    assert spans[0][0] == pytest.approx(0, abs=0.1)
    assert spans[0][1] == pytest.approx(spans[1][0], abs=0.1)
    assert spans[1][1] == pytest.approx(100, abs=0.1)
    assert times == ["11:06", "11:21", "11:36"]


def test_equal_hosts_stand_once():
    found = page.hosts(large_manifest())
    assert found is not None
    assert found.columns == ("kernel", "exit")
    assert [row[1:] for row in found.rows] == [("6.1", "exit 0"), ("6.1", "exit 1"), ("6.2", "exit 1")]
    assert found.rows[0][0].endswith("… (128 in all)")
    assert found.rows[2][0] == "17"
    assert found.varied == ("skew (256 values)",)
    assert dict(found.same)["python"] == "3.12.4"
    assert len(found.each) == 256


@pytest.mark.slow
def test_a_page_of_many_attempts_on_many_hosts_stays_small(services, tmp_path):
    html = html_of(services, tmp_path, large_manifest())
    read(html)
    assert len(html.encode()) < 1 << 20
    assert "70 earlier ones" in html
    assert "Shortened: <code>tpuctl manifest show first</code>" in html


def test_the_last_output_of_many_workers_is_cut(services):
    html = make_report(services, put_run(services, hosts=256, more="<\t" * 5000)).html
    assert html.count("<details") > 256
    assert len(html.encode()) < 2 << 20


def test_nothing_in_a_page_acts_or_asks_for_anything(services, tmp_path):
    manifest = a_manifest(argv=("python3", PLANTED, '" onload="x'))
    manifest["attempts"][1]["hosts"][0]["kernel"] = PLANTED
    html = html_of(services, tmp_path, manifest)
    found = read(html)
    assert PLANTED not in html
    assert not {"script", "img", "iframe", "object", "form", "base"} & set(found.seen)
    assert not [name for name, _ in found.attributes if name.startswith("on") or name in ("src", "style")]
    assert [value for name, value in found.attributes if name == "href"] == ["data:,"]
    assert {value for _, value in found.attributes if "url(" in value} <= {"url(#hatch)"}
    policy = next(value for _, value in found.attributes if "default-src" in value)
    assert re.match(r"default-src 'none'; style-src 'sha256-[A-Za-z0-9+/]{43}='; img-src data:;", policy)
    assert manifest["chain"][-1] in html


def test_a_failed_run_without_a_manifest_is_shown_by_its_record(services):
    html = make_report(services, put_run(services)).html
    read(html)
    assert "module-not-found" in html
    assert "add it" in html
    assert "Without digests" in html
    assert "100%\n&lt;script&gt;" in html
    assert PLANTED not in html
    assert TOKEN not in html
    assert "big-1</code> stdout <span" in html


def test_a_run_that_goes_on_and_one_that_has_not_begun_have_pages(services):
    goes_on = a_run(id="on", attempt=an_attempt(started_at=2000.0))
    begins = a_run(id="new", attempt=None, state=RunState.WAITING)
    for run in (goes_on, begins):
        services.store.put(run.key, to_data(run), if_generation=0)
        read(make_report(services, run.id).html)
    assert "goes on" in make_report(services, "on").html
    assert "waits" in make_report(services, "new").html


def test_data_is_named_by_its_receipt(services, tmp_path):
    receipt = {"uri": "gs://b/fineweb", "objects": 1800, "digest": {"value": "f" * 64, "of": "listing"}}
    html = html_of(services, tmp_path, {**a_manifest(), "data": [receipt]})
    assert f"gs://b/fineweb, 1800 objects, digest <code>{'f' * 12}</code>" in html


def test_made_up_data_is_said_at_the_top(services, tmp_path):
    manifest = copy.deepcopy(a_manifest())
    assert "Synthetic" not in html_of(services, tmp_path, manifest)
    assert '<p class="alarm">Synthetic data' in html_of(services, tmp_path, {**manifest, "synthetic": True})
