"""One pass of the watchdog over a large fleet that is in order: calls, CPU and memory, for both kinds of store.

The cloud is the simulator's world behind its real APIs, with hosts in memory: a pass over slices without runs
connects to none.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.bench.harness import Budget, Contender, Plan, Report, compare, execute, lines, scratch
from tests.bench.startup import TPUCTL
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
TOKEN = "bench"
PROJECT = "sim-project"


@dataclass(frozen=True)
class Cloud:
    """A running world, what was asked of it, and where it answers."""

    world: World
    calls: Counter[str]
    endpoint: str


@contextmanager
def open_cloud(folder: Path) -> Iterator[Cloud]:
    """The APIs that a pass needs, with every request counted by its method and collection."""
    hosts = MemoryHosts(FakeClock(WatchedClock()))
    world = World(hosts, WorldOptions(project=PROJECT, delays=Delays.instant()))
    storage = Storage(folder / "gcs", world)
    calls: Counter[str] = Counter()

    def counted(handle: Callable[[Request], Response]) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            calls[f"{request.method} {request.path.rstrip('/').rsplit('/', 1)[-1]}"] += 1
            return handle(request)

        return answer

    tpu = counted(TpuRestApi(world).handle)
    buckets = counted(world.access.guard(STORAGE, storage.handle))
    apis = {"/v2/": tpu, "/v2alpha1/": tpu, **dict.fromkeys(STORAGE_PREFIXES, buckets)}
    server = HttpServer(Router(TOKEN, apis).handle)
    server.start()
    try:
        yield Cloud(world, calls, server.endpoint)
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


def _write_profile(state: Path, cloud: Cloud) -> None:
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
    with scratch() as folder, open_cloud(folder) as cloud:
        state = folder / "state"
        _write_profile(state, cloud)
        with closing(SqliteStore(state / "sim" / PROJECT / "store.sqlite")) as store:
            zones = populate(cloud, store, count)
        local, local_calls = _measure(plan, cloud, state, "SQLite")
        move = Contender("move", [TPUCTL, "config", "init", "--store", BUCKET_STORE], _environ(state))
        execute(move)
        shared, shared_calls = _measure(plan, cloud, state, "bucket")
    medians = {**local[1], **shared[1]}
    contenders = [local[0], shared[0]]
    pages = -(-count // PAGE_SIZE)
    budgets = []
    for contender, calls in ((local[0], local_calls), (shared[0], shared_calls)):
        found = medians[contender.name]
        budgets += [
            Budget(f"{contender.name}: CPU", found.cpu_s, 2.0, unit="s"),
            Budget(f"{contender.name}: peak memory", found.peak_mb, 150.0, unit="MB"),
            Budget(
                f"{contender.name}: calls of the TPU API, for {2 * pages} pages of {PAGE_SIZE}",
                _lists(calls),
                2.0 * pages,
                unit="",
            ),
        ]
    reads = sum(shared_calls.values()) - _lists(shared_calls)
    budgets.append(Budget("bucket: calls of the storage API", reads, 30.0, unit=""))
    setting = f"one `tpuctl watch once` over {count} slices in {zones} zones, nothing to be done"
    return [
        Report("Pass", setting, contenders[0].name, lines(contenders, medians), tuple(budgets)),
    ]


def _measure(plan: Plan, cloud: Cloud, state: Path, name: str) -> tuple[Any, Counter[str]]:
    contender = Contender(f"over {name}", [TPUCTL, "watch", "once", "--quiet"], _environ(state))
    execute(contender)  # caches are written
    cloud.calls.clear()
    execute(contender)
    calls = Counter(cloud.calls)
    return (contender, compare([contender], plan.rounds)), calls


def _lists(calls: Counter[str]) -> float:
    return float(calls["GET nodes"] + calls["GET queuedResources"])


def _environ(state: Path) -> dict[str, str]:
    return {"TPUCTL_STATE_DIR": str(state), "TPUCTL_PROFILE": "sim", "HOME": str(state)}
