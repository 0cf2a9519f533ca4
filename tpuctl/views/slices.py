"""What the list commands show: rows as plain data, with stable keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from tpuctl.engine.services import Services
from tpuctl.errors import DamagedRecordError
from tpuctl.inventory.listing import TpuLists, list_tpus
from tpuctl.inventory.resources import Caller, Fate, Judged, gather, judge
from tpuctl.lib.time import render_time
from tpuctl.model.cloud import CloudResource
from tpuctl.model.records import RunRecord, SliceRecord, SliceState
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.model.slice_spec import SliceOptions, SliceSpec
from tpuctl.money.slice_costs import Costs, names_shown
from tpuctl.runs.active import never_began
from tpuctl.runs.mounts import sick_mounts
from tpuctl.slices.observe import Observation, observe_slice
from tpuctl.slices.replacement import find_replacement_limit
from tpuctl.slices.ssh_entries import follow_slices
from tpuctl.state.repository import (
    active_runs,
    find_slice,
    readable_runs,
    readable_slices,
    runs_under_way,
)
from tpuctl.views.conditions import Condition, cloud_word, judge_condition
from tpuctl.views.runs import failure_of, trouble_of

MOUNTS_MAX_S = 15.0
"""For asking hosts how their mounts are: a probe of one that hangs takes 5 s."""
_STATES: Mapping[Fate, str] = {
    Fate.UNMANAGED: "unmanaged",
    Fate.LOOKALIKE: "looks-like-ours",
    Fate.OTHER_FLEET: "other-fleet",
    Fate.OTHER_USER: "unwanted",
    Fate.DELETE: "unwanted",
    Fate.WANTED: "unclear",
}
"""What `ls` calls a TPU that no slice of this store stands for now."""


def fleet_rows(services: Services, tpus: TpuLists | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """One row per slice of this store, one per other TPU or request of the project; and the zones not read.
    `tpus`: what the cloud has, if that is known already."""
    tpus = tpus or list_tpus(services)
    nodes, queued = tpus.nodes, tpus.queued
    readable, damaged = readable_slices(services)
    records = {record.name: record for record in readable}
    follow_slices(services, records.values())
    live = [record for record in records.values() if record.state is not SliceState.GONE]
    found = gather(nodes.items, queued.items)
    hosts = Counter[tuple[str, str]]()
    for node in nodes.items:
        hosts[node.zone, node.queued_resource or node.name] += len(node.endpoints)
    states = {(node.zone, node.name): str(node.state) for node in nodes.items}
    waiting = {(item.zone, item.name): str(item.state) for item in queued.items}
    places = [place for record in live for place in record.places]
    rows = [_slice_row(services, place, {**waiting, **states}, tpus) for place in places]
    leads = [place is record for record in live for place in record.places]
    rows = [
        row if lead else {**row, "remark": Condition(row["name"])}
        for row, lead in zip(rows, leads, strict=True)
    ]
    lives = [(place.spec.zone, place.incarnation) for place in places if place.incarnation]
    ours = {(zone, name) for zone, life in lives for name in (life.cloud_name, life.queued_name)}
    caller = Caller(services.store.identity(), services.user, all_users=True)
    rows += [_damaged_row(error) for error in damaged]
    lost = {error.details["key"].removeprefix("slices/") for error in damaged}
    rows += [
        _other_row(_unless(each, lost) or judge(each, records, caller), states, hosts[each.location, each.name])
        for each in found
        if (each.location, each.name) not in ours
    ]
    made_up = {run.slice_name for run in runs_under_way(services) if run.spec.synthetic}
    costs = Costs(services, nodes.items, queued.items)
    names = {record.name: [name for place in record.places for name in names_shown(place)] for record in live}
    for row in rows:
        row["synthetic"] = bool(row["managed"]) and row["name"] in made_up
        row.update(costs.of(row["zone"], names.get(row["name"], []) if row["managed"] else [row["name"]]))
    return rows, sorted(tpus.unreachable)


def _unless(found: CloudResource, lost: AbstractSet[str]) -> Judged | None:
    """What may be a slice's whose record cannot be read is not called unwanted."""
    if found.slice_name not in lost:
        return None
    return Judged(found, Fate.WANTED, f"the record of {found.slice_name} is damaged")


FLEET_KEYS = (
    "name", "type", "zone", "tier", "hosts", "state", "cloud", "node", "user", "created", "managed", "remark",
    "adopted", "payer", "usd_per_hour", "paid", "synthetic",
)  # fmt: skip


def _damaged_row(error: DamagedRecordError) -> dict[str, Any]:
    """A row for a record that cannot be read, beside those that can."""
    label = error.details["key"].partition("/")[2]
    remark = Condition(label, "{why}; {hint}", why=error.message, hint=error.hint)
    said = {"name": label, "state": "damaged", "remark": remark, "managed": True}
    return {key: said.get(key) for key in FLEET_KEYS}


def _slice_row(
    services: Services, record: SliceRecord, shown: Mapping[tuple[str, str], str], tpus: TpuLists
) -> dict[str, Any]:
    """`shown` is what the cloud says of nodes, and of requests without one, by zone and name."""
    cloud_name = record.incarnation.cloud_name if record.incarnation else ""
    names = names_shown(record)
    said = next((shown[record.spec.zone, name] for name in names if (record.spec.zone, name) in shown), "")
    cloud = cloud_word(record, said, unread=tpus.is_dark(record.spec.zone, record.spec.api))
    return {
        "name": record.name,
        "type": record.spec.accelerator_type,
        "zone": record.spec.zone,
        "tier": str(record.spec.tier),
        "hosts": record.spec.hosts,
        "state": str(record.state),
        "cloud": cloud,
        "node": cloud_name,
        "user": record.owner,
        "created": render_time(record.created_at),
        "managed": True,
        "remark": condition_of(services, record, cloud),
        "adopted": record.incarnation is not None and record.incarnation.by_hand,
    }


def _other_row(judged: Judged, states: Mapping[tuple[str, str], str], hosts: int) -> dict[str, Any]:
    found = judged.found
    return {
        "name": found.name,
        "type": found.type,
        "zone": found.location,
        "tier": found.tier,
        "hosts": hosts,
        "state": _STATES.get(judged.fate, str(judged.fate)),
        "cloud": states.get((found.location, found.name), found.state),
        "node": found.name,
        "user": found.user,
        "created": found.created or None,
        "managed": False,
        "remark": Condition(found.name),
    }


def options_shown(spec: SliceSpec) -> dict[str, str]:
    """What of a specification stands in it as the user wrote it, in one word or line; and what else is asked of
    the cloud that has no line of its own in `status`."""
    names = (*SliceOptions.__struct_fields__, "tags", "labels")
    said = {name: _in_words(getattr(spec, name)) for name in names if getattr(spec, name)}
    if not spec.external_ips:
        said["external_ips"] = "no"
    disks = ", ".join(f"{each.name} at {each.path} ({each.mode.short})" for each in spec.disks)
    mounts = ", ".join(f"{each.source} at {each.path} ({each.profile})" for each in spec.mounts)
    return {**said, **({"disks": disks} if disks else {}), **({"mounts": mounts} if mounts else {})}


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={each}" for key, each in sorted(value.items()))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def slice_status(services: Services, name: str) -> dict[str, Any]:
    """One slice in full, as recorded and as the cloud shows it now."""
    observation = observe_slice(services, name)
    return describe_slice(services, observation.record, runs_under_way(services), observation)


def describe_slice(
    services: Services, record: SliceRecord, under_way: Iterable[RunRecord], seen: Observation | None = None
) -> dict[str, Any]:
    """One slice in full, of all runs that are `under_way`; without what the cloud and its hosts show now where
    that was not `seen`."""
    incarnation, node = record.incarnation, seen.info.node if seen is not None else None
    runs = [_run_on_slice(each) for each in under_way if each.slice_name == record.name]
    word = _word_of(seen) if seen is not None else ""
    return {
        "name": record.name,
        "state": str(record.state),
        "desired": str(record.desired),
        "type": record.spec.accelerator_type,
        "zone": record.spec.zone,
        "tier": str(record.spec.tier),
        "hosts": record.spec.hosts,
        "chips": record.spec.chips,
        "devices": record.spec.chips * _devices_per_chip(record.spec.accelerator_type),
        "slices": record.spec.slices,
        "runtime_version": record.spec.runtime_version,
        "options": options_shown(record.spec),
        "env": record.spec.env.name if record.spec.env is not None else None,
        "queued": record.spec.queued,
        "api": str(record.spec.api),
        "machine_type": record.spec.machine_type,
        "user": record.owner,
        "login_user": record.spec.login_user,
        "created": render_time(record.created_at),
        "node": incarnation.cloud_name if incarnation else None,
        "incarnation": incarnation.number if incarnation else record.last_incarnation,
        "requested": render_time(incarnation.requested_at) if incarnation else None,
        "ready": render_time(incarnation.ready_at) if incarnation else None,
        "cloud": seen.observed.why if seen is not None else None,
        "remark": condition_of(services, record, word, why=seen is None),
        "race": [_rival(place) for place in record.places[1:]],
        "event": str(seen.observed.event) if seen is not None else None,
        "last_loss": None
        if record.loss is None
        else {"at": render_time(record.loss.at), "kind": record.loss.kind, "detail": record.loss.detail},
        "ends": None if record.lifetime is None else render_time(record.lifetime.expires_at),
        "ends_in_cloud": render_time(node.ends_at) if node is not None else None,
        "stop_when_idle_s": None if record.lifetime is None else record.lifetime.idle_s,
        "workers": [
            {"worker": i, "address": w.endpoint.address, "hostname": w.hostname}
            for i, w in enumerate(incarnation.workers if incarnation else ())
        ],
        "mounts": _mounts(services, record) if seen is not None else [],
        "run": runs[0] if runs else None,
        "runs": runs,
    }


def _devices_per_chip(accelerator_type: str) -> int:
    """1 for a generation that no table has."""
    found = load_accelerators().find_generation(accelerator_type.rpartition("-")[0])
    return found.devices_per_chip if found else 1


def _rival(place: SliceRecord) -> dict[str, Any]:
    """Where else a slice is asked for at the same time, and how that stands."""
    node = place.incarnation.cloud_name if place.incarnation else None
    why = place.loss.detail if place.loss else ""
    kind = place.spec.accelerator_type
    return {"type": kind, "zone": place.spec.zone, "node": node, "state": str(place.state), "why": why}


def _run_on_slice(run: RunRecord) -> dict[str, Any]:
    return {
        "id": run.id,
        "state": str(run.state),
        "chips": list(run.chips),
        "failure": failure_of(run),
        "trouble": trouble_of(run),
        "synthetic": run.spec.synthetic,
    }


def _mounts(services: Services, record: SliceRecord) -> list[dict[str, Any]]:
    """How its mounts are on each host, now."""
    if not record.spec.mounts or record.state not in {SliceState.READY, SliceState.INITIALIZING}:
        return []
    from tpuctl.mounts.use import check_mounts

    rows = check_mounts(services, record, limit_s=MOUNTS_MAX_S)
    return [{key: row[key] for key in ("path", "worker", "health", "well")} for row in rows]


def _word_of(observation: Observation) -> str:
    """The cloud's word for what a look saw, as `ls` shows it."""
    node, queued = observation.info.node, observation.info.queued
    said = str(node.state if node is not None else queued.state if queued is not None else "")
    return cloud_word(observation.record, said, unread=bool(observation.info.unread))


def describe_condition(services: Services, name: str) -> str:
    """The condition of a slice as it is recorded, without asking the cloud; empty for a run."""
    stored = find_slice(services, name)
    return condition_of(services, stored.record, "") if stored is not None else ""


def condition_of(services: Services, record: SliceRecord, cloud: str, *, why: bool = True) -> Condition:
    """The condition of a slice, by itself, for want of its run, or for what its run was told of its mounts."""
    unused = never_began(services, record)
    found = judge_condition(record, cloud, why=why, limit_s=find_replacement_limit(services, record))
    if unused and not found:
        return Condition(record.name, "{name} was {unused}", unused=unused)
    return found or _sick_mounts(services, record)


def _sick_mounts(services: Services, record: SliceRecord) -> Condition:
    runs = active_runs(services, record.name) if record.spec.mounts else []
    sick = sick_mounts(each for run in runs if run.attempt is not None for each in run.attempt.mounts)
    said = "{name}: mount {sick}; `tpuctl mount check --on {name}`" if sick else ""
    return Condition(record.name, said, sick=sick)


def synthetic_runs(services: Services, name: str) -> list[str]:
    """The run of this id, or those under way on the slice of this name, that run on made-up data."""
    runs = [run for run in readable_runs(services)[0] if run.spec.synthetic]
    return [run.id for run in runs if run.id == name or (run.slice_name == name and not run.state.final)]
