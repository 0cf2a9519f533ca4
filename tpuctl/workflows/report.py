"""What the list commands show: rows as plain data, with stable keys."""

from __future__ import annotations

from typing import Any

from tpuctl.core.manifest import render_time
from tpuctl.core.model import OWNER_LABEL, Listing, NodeInfo, QueuedInfo
from tpuctl.core.records import RunRecord, SliceRecord, SliceState
from tpuctl.workflows.documents import get_slice, list_attempts, list_runs, list_slices
from tpuctl.workflows.observe import look_at_slice
from tpuctl.workflows.services import Services


def fleet_rows(services: Services) -> tuple[list[dict[str, Any]], list[str]]:
    """One row per slice of this store and per other TPU of the project; and the zones not read."""
    nodes = services.cloud.list_nodes()
    records = [r for r in list_slices(services) if r.state is not SliceState.GONE]
    queued: Listing[QueuedInfo] = services.cloud.list_queued()
    seen = {node.name: node for node in nodes.items}
    waiting = {item.name: item for item in queued.items}
    rows = [_slice_row(record, seen, waiting) for record in records]
    ours = {r.incarnation.cloud_name for r in records if r.incarnation}
    rows += [_foreign_row(node) for node in nodes.items if node.name not in ours]
    return rows, sorted(nodes.unreachable | queued.unreachable)


def _slice_row(
    record: SliceRecord, nodes: dict[str, NodeInfo], queued: dict[str, QueuedInfo]
) -> dict[str, Any]:
    cloud_name = record.incarnation.cloud_name if record.incarnation else ""
    node, request = nodes.get(cloud_name), queued.get(cloud_name)
    return {
        "name": record.name,
        "type": record.spec.accelerator_type,
        "zone": record.spec.zone,
        "tier": str(record.spec.tier),
        "hosts": record.spec.hosts,
        "state": str(record.state),
        "cloud": str(node.state) if node else str(request.state) if request else "",
        "node": cloud_name,
        "user": record.owner,
        "created": render_time(record.created_at),
        "managed": True,
    }


def _foreign_row(node: NodeInfo) -> dict[str, Any]:
    return {
        "name": node.name,
        "type": node.accelerator_type,
        "zone": node.zone,
        "tier": str(node.tier),
        "hosts": len(node.endpoints),
        "state": "unmanaged" if OWNER_LABEL not in node.labels else "other-store",
        "cloud": str(node.state),
        "node": node.name,
        "user": node.labels.get("tpuctl-user", ""),
        "created": node.create_time or None,
        "managed": False,
    }


def slice_status(services: Services, name: str) -> dict[str, Any]:
    """One slice in full, as recorded and as the cloud shows it now."""
    look = look_at_slice(services, name)
    record, incarnation = look.record, look.record.incarnation
    run = next((r for r in list_runs(services) if r.slice_name == name and not r.state.final), None)
    return {
        "name": record.name,
        "state": str(record.state),
        "desired": str(record.desired),
        "type": record.spec.accelerator_type,
        "zone": record.spec.zone,
        "tier": str(record.spec.tier),
        "hosts": record.spec.hosts,
        "chips": record.spec.chips,
        "runtime_version": record.spec.runtime_version,
        "queued": record.spec.queued,
        "user": record.owner,
        "login_user": record.spec.login_user,
        "created": render_time(record.created_at),
        "node": incarnation.cloud_name if incarnation else None,
        "incarnation": record.last_incarnation,
        "requested": render_time(incarnation.requested_at) if incarnation else None,
        "ready": render_time(incarnation.ready_at) if incarnation else None,
        "cloud": look.sighting.why,
        "event": str(look.sighting.event),
        "last_loss": None
        if record.loss is None
        else {"at": render_time(record.loss.at), "kind": record.loss.kind, "detail": record.loss.detail},
        "workers": [
            {"worker": i, "address": w.endpoint.address, "hostname": w.hostname}
            for i, w in enumerate(incarnation.workers if incarnation else ())
        ],
        "run": None if run is None else {"id": run.id, "state": str(run.state)},
    }


def decisions(services: Services, name: str) -> list[dict[str, Any]]:
    """The audit trail of a slice and of the runs on it, or of one run, oldest first."""
    subjects = [f"runs/{name}"] if services.store.get(f"runs/{name}") else []
    if not subjects:
        get_slice(services, name)
        subjects = [f"slices/{name}"]
        subjects += [run.key for run in list_runs(services) if run.slice_name == name]
    entries = [
        {**document.data, "subject": subject.split("/", 1)[1]}
        for subject in subjects
        for document in services.store.list(f"journal/{subject}/")
    ]
    entries.sort(key=lambda entry: float(entry["at"]))
    return [{**entry, "at": render_time(float(entry["at"]))} for entry in entries]


def run_rows(services: Services) -> list[dict[str, Any]]:
    """One row per run, newest first."""
    runs = sorted(list_runs(services), key=lambda run: run.created_at, reverse=True)
    return [_run_row(run) for run in runs]


def _run_row(run: RunRecord) -> dict[str, Any]:
    return {
        "id": run.id,
        "slice": run.slice_name,
        "state": str(run.state),
        "attempts": run.attempt.number if run.attempt else 0,
        "failures": run.failures,
        "preemptions": run.preemptions,
        "command": list(run.argv),
        "created": render_time(run.created_at),
        "ended": render_time(run.ended_at),
        "reason": run.reason,
        "user": run.owner,
    }


def manifest_of(services: Services, run_id: str, attempt: int | None = None) -> dict[str, Any] | None:
    """The manifest of one ended attempt (the last for None), or None while there is none."""
    documents = services.store.list(f"manifests/{run_id}/")
    if attempt is not None:
        documents = [d for d in documents if d.key.endswith(f"/{attempt:05d}")]
    return dict(documents[-1].data) if documents else None


def attempt_numbers(services: Services, run_id: str) -> list[int]:
    """Numbers of the ended attempts of a run."""
    return [attempt.number for attempt in list_attempts(services, run_id)]
