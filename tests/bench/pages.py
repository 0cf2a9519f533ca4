"""What the pages of `tpuctl ui` cost its server, over a large fleet and the runs of years.

Measured is processor time of the server's process, from a request to the end of its answer: of the first look
at a page, after a run has changed, and once more with nothing new.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

from tests.bench.harness import BenchError, Budget, Line, Plan, Report, scratch
from tests.bench.passes import (
    PROJECT,
    SLICES,
    open_cloud,
    populate,
    profile_environment,
    write_profile,
    zones_with_one_host,
)
from tests.bench.published import measure_published
from tests.bench.startup import TPUCTL
from tests.bench.stores import RUNS, write_runs
from tpuctl.lib.codec import to_data
from tpuctl.model.capacity import CapacityNote, note_ready, note_request
from tpuctl.model.cloud import Tier
from tpuctl.slices.capacity_notes import NOTES
from tpuctl.state.sqlite import SqliteStore

UNDER_WAY = 20
"""One of so many runs goes on; the others are over."""
PAGES = {
    "fleet": "/",
    "slice": "/slices/s0000",
    "runs": "/runs",
    "runs with a text": "/runs?text=lr%3D0.05",
    "run": "/runs/r00000",
    "money": "/money",
    "capacity": "/capacity.svg",
}
LIMIT_S = 1.0


def write_notes(store: SqliteStore) -> None:
    """What was learnt of capacity: each hour of the day in each zone."""
    for zone, kind in zones_with_one_host().items():
        note = CapacityNote(zone, kind.name, Tier.SPOT, waits_s=(60.0, 300.0), lives_s=(7200.0,))
        for hour in range(24):
            note = note_ready(note_request(note, 3600.0 * hour), 3600.0 * hour, 3600.0 * hour + 200)
        store.put(NOTES.key(note.name), to_data(note), if_generation=0)


class Served:
    """A running `tpuctl ui`, let in as a browser is."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._pid = process.pid
        base, _, token = process.stdout.readline().strip().partition("/?")
        self._host = base.removeprefix("http://")
        self._cookie = ""
        entrance = self._answer(f"/?{token}")
        self._cookie = entrance.headers["Set-Cookie"].partition(";")[0]

    def _answer(self, path: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self._host, timeout=120)
        connection.request("GET", path, headers={"Cookie": self._cookie})
        answer = connection.getresponse()
        if answer.status != 200 or not answer.read():
            raise BenchError(f"{path}: status {answer.status}")
        return answer

    def ask(self, path: str) -> tuple[float, float]:
        """Wall and processor time of a page."""
        began, spent = time.monotonic(), self._spent()
        self._answer(path)
        return time.monotonic() - began, self._spent() - spent

    def _spent(self) -> float:
        words = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serve(environ: dict[str, str]) -> Iterator[Served]:
    process = subprocess.Popen(
        [TPUCTL, "ui", "--no-open"], env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Served(process)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def measure(plan: Plan) -> list[Report]:
    slices, runs = (SLICES // 20, RUNS // 20) if plan.quick else (SLICES, RUNS)
    with scratch() as folder, open_cloud(folder) as cloud:
        state = folder / "state"
        write_profile(state, cloud)
        file = state / "sim" / PROJECT / "store.sqlite"
        with closing(SqliteStore(file)) as store:
            populate(cloud, store, slices)
            write_runs(file, runs, slices, under_way=UNDER_WAY)
            write_notes(store)
            with serve(profile_environment(state)) as site:
                found = {name: _looks(plan, store, site, path) for name, path in PAGES.items()}
        published = measure_published(cloud, state, file, f"over {slices} slices and {runs:,} runs")
    lines = [Line(f"{name}, {look}", *spent) for name, looks in found.items() for look, spent in looks.items()]
    budgets = [
        Budget(f"CPU of {name}, whichever look", max(cpu for _, cpu in looks.values()), LIMIT_S, unit="s")
        for name, looks in found.items()
    ]
    setting = f"`tpuctl ui` over {slices} slices and {runs:,} runs, one in {UNDER_WAY} of them under way"
    return [Report("Pages of the browser", setting, lines[0].name, tuple(lines), tuple(budgets)), published]


def _looks(plan: Plan, store: SqliteStore, site: Served, path: str) -> dict[str, tuple[float, float]]:
    """Wall and processor time by look."""
    looks: dict[str, list[tuple[float, float]]] = {
        "first": [site.ask(path)],
        "a run changed": [],
        "nothing new": [],
    }
    for number in range(plan.rounds):
        document = store.get("runs/r00020")
        assert document is not None
        store.put(document.key, {**document.data, "reason": f"now {number}"}, if_generation=document.generation)
        looks["a run changed"].append(site.ask(path))
        looks["nothing new"].append(site.ask(path))
    return {look: (median(w for w, _ in spent), median(c for _, c in spent)) for look, spent in looks.items()}
