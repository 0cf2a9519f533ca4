"""Somebody who watches the cloud itself, and holds a fleet to its promises without asking tpuctl."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.fleet.weather import MINUTE, Weather
from tests.support.memory.host import Condition
from tests.support.memory.services import MemoryPlace
from tpuctl.model import timeouts
from tpuctl.model.cloud import INCARNATION_LABEL, OWNER_LABEL
from tpuctl.sim.wire.status import Json
from tpuctl.sim.world.paths import ResourcePath
from tpuctl.sim.world.world import Resident, target_of

ALIVE = frozenset({"CREATING", "READY", "RESTARTING", "REPAIRING", "STARTING"})
QUEUED_ALIVE = frozenset({"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"})
DEAD = frozenset({"PREEMPTED", "SUSPENDED", "FAILED"})
SLACK_S = 4 * MINUTE
"""For two passes of each machine, a lease of a killed process, and reading twice. No allowance for clocks."""
PASS_S = 30.0
"""What became ready during a pass may have been seen by it before it is looked at here."""
DEAD_MAX_S = 20 * MINUTE


class Broken(AssertionError):
    """The fleet broke a promise."""


@dataclass
class Waiting:
    """One slice that has nothing in the cloud: since when, and since when each zone had room for it."""

    since: float
    room_since: dict[str, float] = field(default_factory=dict)


class Observer:
    """Sees every call before it takes effect, and the census whenever it is told to look."""

    def __init__(self, place: MemoryPlace, weather: Weather) -> None:
        self._place = place
        self._weather = weather
        self._call = place.world.call
        place.world.call = self.overhear  # type: ignore[method-assign]
        self._waiting: dict[str, Waiting] = {}
        self._operations: dict[str, tuple[float, str]] = {}
        """When the last create for a slice was called, and what the cloud named its operation."""
        self._well_at: dict[str, float] = {}
        """When each node, by key, was last seen on its way or with all hosts answering."""
        self._dead_since: dict[str, float] = {}
        self._dark_until: dict[str, float] = {}
        self.broken: Broken | None = None
        self.creates = self.deletes = 0
        self.longest_wait_s = 0.0

    # Calls.

    def overhear(self, method: str, request: Json, version: str = "v2") -> Json:
        """Stands before `World.call`."""
        called = self._place.world.calls[method]
        if called.changes:
            try:
                self._check_call(called.id, target_of(called.id, request), request)
            except Broken as broken:
                self.broken = broken  # a pass survives whatever it meets
                raise
        answer = self._call(method, request, version)
        if called.id.endswith(".create"):
            owner = _labels_of(request).get(OWNER_LABEL, "")
            self._operations[owner] = (self._place.clock.now(), answer["name"])
        return answer

    def _check_call(self, method: str, path: ResourcePath, request: Json) -> None:
        if method.endswith(".create"):
            self.creates += 1
            self._waiting.pop(_labels_of(request).get(OWNER_LABEL, ""), None)  # it does not only wait
            self._check_intent(path, request)
        elif method.endswith(".delete"):
            self.deletes += 1
            self._check_deletion(path)

    def _check_intent(self, path: ResourcePath, request: Json) -> None:
        """The intent is in the store before the call is made, and everything carries its owner."""
        labels = _labels_of(request)
        record = self._record(labels.get(OWNER_LABEL, ""))
        if record is None or record["incarnation"] is None:
            raise Broken(f"{path.id} is created without an intent")
        if record["incarnation"]["cloud_name"] != path.id or record["spec"]["zone"] != path.zone:
            raise Broken(f"{path.id} in {path.zone} is created, the intent says {record['incarnation']}")
        if labels.get(INCARNATION_LABEL) != str(record["incarnation"]["number"]):
            raise Broken(f"{path.id} carries the labels {labels}")
        if record["desired"] != "up":
            raise Broken(f"{path.id} is created, and nobody wants it")

    def _check_deletion(self, path: ResourcePath) -> None:
        """A node that is READY is deleted only when its user wants that, or after its hosts had their time."""
        for node in self._place.world.census():
            mine = node.kind == "node" and node.path.zone == path.zone and node.path.id.startswith(path.id)
            if not mine or node.state != "READY":
                continue
            record = self._record(node.labels.get(OWNER_LABEL, ""))
            if record is not None and record["desired"] == "down":
                continue
            silent_s = self._place.clock.now() - self._well_at.get(node.key, 0.0)
            if silent_s < timeouts.UNREACHABLE_MAX_S - PASS_S:
                raise Broken(f"{path.id} in {path.zone} is deleted after {silent_s:.0f} s of silence")

    def _hosts_answer(self, node: Resident) -> bool:
        hosts = self._place.hosts.hosts_of(node.key)
        return bool(hosts) and all(host.condition is Condition.UP for host in hosts)

    def _record(self, name: str) -> Mapping[str, Any] | None:
        document = self._place.server.find(f"slices/{name}")
        return None if document is None else document.data

    # Looks.

    def look(self) -> None:
        """Compares what exists with what should."""
        census, now = self._place.world.census(), self._place.clock.now()
        by_owner: dict[str, list[Resident]] = defaultdict(list)
        for each in census:
            by_owner[each.labels.get(OWNER_LABEL, "")].append(each)
        for owner, things in by_owner.items():
            self._check_single(owner, things)
        self.see_who_is_well()
        self._check_dead(census, now)
        self._check_waits(by_owner, now)

    def see_who_is_well(self) -> None:
        """Notes whose hosts answer now; also right before a pass, which is to see what came back until then."""
        now = self._place.clock.now()
        self._well_at = {
            each.key: now
            if each.state != "READY" or self._hosts_answer(each)
            else self._well_at.get(each.key, now)
            for each in self._place.world.census()
            if each.kind == "node"
        }

    def _check_single(self, owner: str, things: list[Resident]) -> None:
        lives = {(each.path.zone, each.path.id) for each in things if _alive(each)}
        if len(lives) > 1:
            raise Broken(f"{owner} exists more than once: {sorted(lives)}")

    def _check_dead(self, census: list[Resident], now: float) -> None:
        """What a person removed may stay as it is; its time begins when it is asked for again."""
        dead = {}
        for each in census:
            record = self._record(each.labels.get(OWNER_LABEL, "")) if each.state in DEAD else None
            if record is not None and record["state"] != "removed":
                dead[f"{each.kind} {each.path.name}"] = each, record
        since = {key: self._dead_since.get(key, now) for key in dead}
        for zone in self._weather.dark:
            self._dark_until[zone] = now
        for key, (each, record) in dead.items():
            readable = max(since[key], self._dark_until.get(each.path.zone, 0.0))
            if now - readable > DEAD_MAX_S:
                raise Broken(f"{key} is {each.state} for {(now - since[key]) / 60:.0f} min: {record}")
        self._dead_since = since

    def _check_waits(self, by_owner: Mapping[str, list[Resident]], now: float) -> None:
        room = {zone: self._place.world.room(zone) for zone in self._place.world.catalog.zones()}
        wanted = [document.data for document in self._place.server.list("slices/")]
        for record in wanted:
            name, zones = record["name"], record["zones"] or [record["spec"]["zone"]]
            resting = record["desired"] != "up" or record["state"] in ("removed", "refused")
            busy = _in_flight(by_owner.get(name, []), hunting=len(zones) > 1) or self._being_created(name, now)
            # What stands in a zone that cannot be read is neither given up nor replaced.
            if resting or busy or record["spec"]["zone"] in self._weather.dark:
                self._waiting.pop(name, None)
                continue
            waiting = self._waiting.setdefault(name, Waiting(now))
            for zone in zones:
                if room[zone] < record["spec"]["chips"] or zone in self._weather.dark:
                    waiting.room_since.pop(zone, None)
                else:
                    waiting.room_since.setdefault(zone, now)
            if waiting.room_since:
                self._check_wait(record, waiting, now, hunting=len(zones) > 1)

    def _being_created(self, name: str, now: float) -> bool:
        """Whether an operation still promises something; for ever it may not."""
        called_at, operation = self._operations.get(name, (0.0, ""))
        if not operation or now - called_at > timeouts.CREATE_STALLED_S:
            return False
        read = self._place.world.handlers["operations.get"]  # past the faults, which are for tpuctl
        return not read({"name": operation}, "v2").get("done")

    def _check_wait(self, record: Mapping[str, Any], waiting: Waiting, now: float, *, hunting: bool) -> None:
        waited = now - max(waiting.since, min(waiting.room_since.values()))
        self.longest_wait_s = max(self.longest_wait_s, waited)
        ceiling = timeouts.BACKOFF_MAX_S + (timeouts.HUNT_PATIENCE_S if hunting else 0.0)
        if waited > ceiling + SLACK_S:
            raise Broken(f"{record['name']} waits for {waited / 60:.0f} min, with room in {waiting}: {record}")

    def check_leases(self, owner: str) -> None:
        """A pass that is over holds nothing that another machine might need."""
        held = [each.key for each in self._place.server.list("leases/") if each.data["owner"] == owner]
        if held:
            raise Broken(f"{owner} is done and still holds {held}")

    def check_end(self) -> None:
        """After a calm: everything that is wanted lives once, and nothing else exists."""
        census = self._place.world.census()
        names = {f"{each.kind} {each.path.id} {each.state}" for each in census}
        expected = set()
        for document in self._place.server.list("slices/"):
            record = document.data
            if record["state"] == "removed":
                # What a person removed stays as it is until it is asked for again, its dead request too.
                names.discard(f"queued {record['incarnation']['cloud_name']} SUSPENDED")
            elif record["desired"] == "up" and record["state"] != "refused":
                if record["state"] != "ready":
                    raise Broken(f"{record['name']} is {record['state']} at the end: {record}")
                expected.add(f"node {record['incarnation']['cloud_name']} READY")
                if record["spec"]["queued"]:
                    expected.add(f"queued {record['incarnation']['cloud_name']} ACTIVE")
        if names != expected:
            raise Broken(f"too much: {sorted(names - expected)}; missing: {sorted(expected - names)}")


def _labels_of(request: Json) -> Mapping[str, str]:
    if "node" in request:
        return dict(request["node"].get("labels") or {})
    return dict(request["queuedResource"]["tpu"]["nodeSpec"][0]["node"].get("labels") or {})


def _alive(each: Resident) -> bool:
    return each.state in (ALIVE if each.kind == "node" else QUEUED_ALIVE)


def _in_flight(things: list[Resident], *, hunting: bool) -> bool:
    """Whether the cloud has something to do for a slice, or does it. Who hunts leaves a queue after a while."""
    patient = {"WAITING_FOR_RESOURCES"} if hunting else set()
    return any(each.state not in DEAD and each.state not in patient for each in things)
