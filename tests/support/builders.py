"""Plain data for unit tests, with everything defaulted that a test does not speak about."""

from __future__ import annotations

from typing import Any

from tpuctl.model.attempts import Attempt, AttemptPhase, CodeState
from tpuctl.model.cloud import (
    INCARNATION_LABEL,
    OWNER_LABEL,
    STORE_LABEL,
    Endpoint,
    NodeInfo,
    NodeState,
    QueuedInfo,
    QueuedState,
    Tier,
)
from tpuctl.model.records import Desired, Incarnation, RunRecord, RunState, SliceRecord, SliceState, Worker
from tpuctl.model.run_spec import RestartPolicy, RunSpec
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.transfer.bundle import CodeBundle
from tpuctl.transfer.tree import Content

ZONE = "us-central2-b"
STORE = "store-1"
LABELS = {OWNER_LABEL: "big", INCARNATION_LABEL: "1", STORE_LABEL: STORE}


def a_spec(**changes: Any) -> SliceSpec:
    values: dict[str, Any] = {
        "accelerator_type": "v4-16",
        "zone": ZONE,
        "tier": Tier.SPOT,
        "runtime_version": "tpu-ubuntu2204-base",
        "hosts": 2,
        "chips": 8,
    }
    return SliceSpec(**{**values, **changes})


def an_incarnation(**changes: Any) -> Incarnation:
    values: dict[str, Any] = {
        "number": 1,
        "cloud_name": "big-1",
        "requested_at": 1000.0,
        "workers": tuple(Worker(Endpoint(f"10.0.0.{i}"), f"ssh-ed25519 KEY{i}") for i in range(2)),
    }
    return Incarnation(**{**values, **changes})


def a_slice(**changes: Any) -> SliceRecord:
    values: dict[str, Any] = {
        "name": "big",
        "spec": a_spec(),
        "owner": "ada",
        "desired": Desired.UP,
        "state": SliceState.READY,
        "last_incarnation": 1,
        "created_at": 1000.0,
        "incarnation": an_incarnation(),
    }
    return SliceRecord(**{**values, **changes})


def a_node(**changes: Any) -> NodeInfo:
    values: dict[str, Any] = {
        "name": "big-1",
        "zone": ZONE,
        "uid": "42",
        "state": NodeState.READY,
        "accelerator_type": "v4-16",
        "runtime_version": "tpu-ubuntu2204-base",
        "tier": Tier.SPOT,
        "labels": LABELS,
    }
    return NodeInfo(**{**values, **changes})


def a_queued(**changes: Any) -> QueuedInfo:
    values: dict[str, Any] = {
        "name": "big-1",
        "zone": ZONE,
        "state": QueuedState.ACTIVE,
        "initiator": "",
        "node_ids": ("big-1",),
        "accelerator_type": "v4-16",
        "tier": Tier.SPOT,
        "labels": LABELS,
    }
    return QueuedInfo(**{**values, **changes})


def an_attempt(**changes: Any) -> Attempt:
    values: dict[str, Any] = {
        "number": 1,
        "incarnation": 1,
        "fence": 3,
        "state": AttemptPhase.RUNNING,
        "created_at": 2000.0,
        "workers": (0, 1),
        "started_at": 2010.0,
    }
    return Attempt(**{**values, **changes})


def a_run_spec(**changes: Any) -> RunSpec:
    values: dict[str, Any] = {
        "slice_name": "big",
        "argv": ("python3", "train.py"),
        "cwd": ".",
        "policy": RestartPolicy(),
        "variables": {},
        "secrets": {},
    }
    return RunSpec(**{**values, **changes})


def a_run(**changes: Any) -> RunRecord:
    values: dict[str, Any] = {
        "id": "r1",
        "code": CodeState("0" * 64),
        "owner": "ada",
        "created_at": 1900.0,
        "state": RunState.RUNNING,
        "attempt": an_attempt(),
    }
    of_spec = {name: changes.pop(name) for name in RunSpec.__struct_fields__ if name in changes}
    return RunRecord(**{**values, "spec": a_run_spec(**of_spec), **changes})


def a_bundle(content: Content) -> CodeBundle:
    """Code outside of any git work tree."""
    return CodeBundle(content, content.sha256, ".", files=1, size_bytes=0)
