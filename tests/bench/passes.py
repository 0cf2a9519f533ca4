"""One pass of the watchdog over a large fleet that is in order: calls, CPU and memory, for both kinds of store.

The cloud is the simulator's world behind its real APIs, with hosts in memory: a pass over slices without runs
connects to none.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from tests.bench.harness import Budget, Contender, Line, Plan, Report, compare, execute, lines, scratch
from tests.bench.startup import TPUCTL
from tests.support.builders import a_run, an_attempt
from tests.support.clocks import FakeClock, WatchedClock
from tests.support.memory.host import MemoryHosts
from tpuctl.config.settings import ENDPOINTS
from tpuctl.inventory.ownership import owner_labels
from tpuctl.lib.codec import to_data
from tpuctl.model.accelerators import AcceleratorType
from tpuctl.model.cloud import Endpoint, Tier
from tpuctl.model.records import Desired, Incarnation, SliceRecord, SliceState, Worker
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.sim.api.http import STORAGE_PREFIXES, HttpServer, Router
from tpuctl.sim.api.tpu_rest import TpuRestApi
from tpuctl.sim.gcs.server import Storage
from tpuctl.sim.wire.messages import Request, Response
from tpuctl.sim.world.delays import Delays
from tpuctl.sim.world.iam import STORAGE
from tpuctl.sim.world.world import World, WorldOptions
from tpuctl.state.sqlite import SqliteStore

SLICES = 1000
PAGE_SIZE = 500
"""Of the API's lists at most; so many items take so many pages."""
BUCKET_STORE = "gs://sim-bucket/fleet"
LEAST = {
    "SQLite": "import typer, msgspec, sqlite3, google.auth.transport.requests",
    "bucket": "import typer, msgspec, sqlite3, google.auth.transport.requests, google.cloud.storage",
}
"""What a pass over each kind of store imports of others at least, before anything is asked."""
TOKEN = "bench"
PROJECT = "sim-project"


@dataclass(frozen=True)
class Cloud:
    """A running world, what was asked of it, and where it answers."""

    world: World
    calls: Counter[str]
    endpoint: str
    sent: Counter[str]
    """How many bytes, as calls are counted."""


@contextmanager
def open_cloud(folder: Path) -> Iterator[Cloud]:
    """The APIs that a pass needs, with every request counted by its method and collection."""
    hosts = MemoryHosts(FakeClock(WatchedClock()))
    world = World(hosts, WorldOptions(project=PROJECT, delays=Delays.instant()))
    storage = Storage(folder / "gcs", world)
    calls: Counter[str] = Counter()
    sent: Counter[str] = Counter()

    def counted(handle: Callable[[Request], Response]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            call = f"{request.method} {request.path.rstrip('/').rsplit('/', 1)[-1]}"
            calls[call] += 1
            sent[call] += len(request.body if request.spooled is None else request.spooled)
            return handle(request)

        return answer

    tpu = counted(TpuRestApi(world).handle)
    buckets = counted(world.access.guard(STORAGE, storage.handle))
    apis = {"/v2/": tpu, "/v2alpha1/": tpu, **dict.fromkeys(STORAGE_PREFIXES, buckets)}
    server = HttpServer(Router(TOKEN, apis).handle)
    server.start()
    try:
        yield Cloud(world, calls, server.endpoint, sent)
    finally:
        server.close()
        world.close()
        storage.close()


def zones_with_one_host() -> dict[str, AcceleratorType]:
    """A type of a single host for every zone that has one."""
    found: dict[str, AcceleratorType] = {}
    for kind in load_accelerators().types.values():
        if kind.hosts == 1 and kind.in_tpu_api:
            for zone in kind.zones:
                found.setdefault(zone, kind)
    return found


def populate(cloud: Cloud, store: SqliteStore, count: int) -> int:
    """Makes `count` ready slices, in the cloud and in the store; in how many zones."""
    places = list(zones_with_one_host().items())
    wanted = [_record(number, *places[number % len(places)]) for number in range(count)]
    for record in wanted:
        cloud.world.call("CreateQueuedResource", _request(record, store.identity()))
    cloud.world.settle()
    nodes = {node["name"].rsplit("/", 1)[-1]: node for node in cloud.world.snapshot()["nodes"]}
    for record in wanted:
        node = nodes[f"{record.name}-1"]
        address = Endpoint(node["networkEndpoints"][0]["ipAddress"])
        incarnation = Incarnation(
            number=1,
            cloud_name=f"{record.name}-1",
            requested_at=0.0,
            cloud_ready_at=0.0,
            ready_at=0.0,
            node_uid=str(node["id"]),
            workers=(Worker(address, "ssh-ed25519 AAAA"),),
        )
        made = to_data(replace(record, incarnation=incarnation))
        store.put(record.key, made, if_generation=0)
    return len(places)


def _record(number: int, zone: str, kind: AcceleratorType) -> SliceRecord:
    spec = SliceSpec(kind.name, zone, Tier.SPOT, kind.runtime_version, kind.hosts, kind.chips)
    return SliceRecord(f"s{number:04d}", spec, "ada", Desired.UP, SliceState.READY, 1, 0.0)


def _request(record: SliceRecord, store_id: str) -> dict[str, Any]:
    incarnation = Incarnation(1, f"{record.name}-1", 0.0)
    parent = f"projects/{PROJECT}/locations/{record.spec.zone}"
    node = {
        "acceleratorType": record.spec.accelerator_type,
        "runtimeVersion": record.spec.runtime_version,
        "labels": owner_labels(record, incarnation, store_id),
    }
    return {
        "parent": parent,
        "queuedResourceId": incarnation.cloud_name,
        "queuedResource": {
            "spot": {},
            "tpu": {"nodeSpec": [{"parent": parent, "nodeId": incarnation.cloud_name, "node": node}]},
        },
    }


def write_profile(state: Path, cloud: Cloud) -> None:
    """What `tpuctl sim up` leaves for its clients."""
    folder = state / "sim"
    folder.mkdir(parents=True)
    token = folder / "token"
    token.write_text(TOKEN)
    settings = {
        "project": PROJECT,
        "token_file": str(token),
        "ssh_port": 22,
        **dict.fromkeys(ENDPOINTS, cloud.endpoint),
    }
    (folder / "profile.json").write_text(json.dumps(settings))


def measure(plan: Plan) -> list[Report]:
    """`watch once` as cron starts it, interpreter and imports included."""
    count = SLICES // 20 if plan.quick else SLICES
    found = []
    for kind in ("SQLite", "bucket"):
        with scratch() as folder, open_cloud(folder) as cloud:
            state, zones = _fill(cloud, folder, count)
            if kind == "bucket":
                execute(
                    Contender(
                        "move", [TPUCTL, "config", "init", "--store", BUCKET_STORE], profile_environment(state)
                    )
                )
            found.append(_measure(plan, cloud, state, kind))
    reads = sum(found[1].calls.values()) - _lists(found[1].calls)
    setting = f"one `tpuctl watch once` over {count} slices in {zones} zones, nothing to be done"
    pages = -(-count // PAGE_SIZE)
    budgets = [budget for each in found for budget in each.budgets(pages)]
    budgets.append(Budget("bucket: calls of the storage API", reads, 30.0, unit=""))
    shown = tuple(line for each in found for line in each.lines)
    return [Report("Pass", setting, found[0].lines[0].name, shown, tuple(budgets))]


def measure_blind(plan: Plan) -> list[Report]:
    """A pass over runs of which no host answers, as on a machine that lost its network."""
    count = SLICES // 20 if plan.quick else SLICES
    with scratch() as folder, open_cloud(folder) as cloud:
        state, _ = _fill(cloud, folder, count, _add_run)
        says_so = ["sh", "-c", f"{TPUCTL} watch once --quiet; test $? = 3"]
        blind = Contender("tpuctl watch once", says_so, profile_environment(state), single_process=False)
        medians = compare([blind], plan.rounds)
    setting = f"one `tpuctl watch once` over {count} runs whose hosts are at addresses of nobody"
    budgets = (
        Budget("wall time", medians[blind.name].wall_s, 10.0, unit="s"),
        Budget("CPU", medians[blind.name].cpu_s, 2.0, unit="s"),
    )
    return [Report("Blind pass", setting, blind.name, lines([blind], medians), budgets)]


def _fill(
    cloud: Cloud, folder: Path, count: int, add: Callable[[SqliteStore, str], None] = lambda *_: None
) -> tuple[Path, int]:
    """The state directory of a fleet, with what `add` puts beside each slice; and in how many zones it is."""
    state = folder / "state"
    write_profile(state, cloud)
    with closing(SqliteStore(state / "sim" / PROJECT / "store.sqlite")) as store:
        zones = populate(cloud, store, count)
        for number in range(count):
            add(store, f"s{number:04d}")
    return state, zones


def _add_run(store: SqliteStore, slice_name: str) -> None:
    began_at = store.now() - 3600
    attempt = an_attempt(workers=(0,), created_at=began_at, started_at=began_at)
    run = a_run(id=f"run-{slice_name}", slice_name=slice_name, created_at=began_at, attempt=attempt)
    store.put(run.key, to_data(run), if_generation=0)


class _Passes(NamedTuple):
    """What passes over one kind of store cost, and what one of them asked."""

    lines: tuple[Line, Line, Line]
    calls: Counter[str]

    def budgets(self, pages: int) -> list[Budget]:
        usual, first, _ = self.lines
        asked = f"{usual.name}: calls of the TPU API, for {2 * pages} pages of {PAGE_SIZE}"
        return [
            Budget(f"{usual.name}: CPU", usual.cpu_s, 0.6, unit="s"),
            Budget(f"{first.name}: CPU", first.cpu_s, 2.0, unit="s"),
            Budget(f"{usual.name}: peak memory", usual.peak_mb or 0.0, 150.0, unit="MB"),
            Budget(asked, _lists(self.calls), 2.0 * pages, unit=""),
        ]


def _measure(plan: Plan, cloud: Cloud, state: Path, name: str) -> _Passes:
    contender = Contender(f"over {name}", [TPUCTL, "watch", "once", "--quiet"], profile_environment(state))
    first = execute(contender)
    _settle(cloud, contender)
    calls = Counter(cloud.calls)
    least = Contender(f"python: what a pass over {name} imports of others", [sys.executable, "-c", LEAST[name]])
    usual, floor = lines([contender, least], compare([contender, least], plan.rounds))
    began = Line(f"{contender.name}, the first", first.wall_s, first.cpu_s, first.peak_mb)
    return _Passes((usual, began, floor), calls)


def _settle(cloud: Cloud, contender: Contender) -> None:
    """Passes until one has nothing more to send; its calls are counted."""
    while True:
        cloud.calls.clear()
        execute(contender)
        if not any(call.startswith("PATCH") for call in cloud.calls):
            return


def _lists(calls: Counter[str]) -> float:
    return float(calls["GET nodes"] + calls["GET queuedResources"])


def profile_environment(state: Path) -> dict[str, str]:
    return {"TPUCTL_STATE_DIR": str(state), "TPUCTL_PROFILE": "sim", "HOME": str(state)}
