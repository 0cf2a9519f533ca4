"""What a request for queued resources may say, and what follows from it. Pure."""

from __future__ import annotations

from datetime import datetime

from tpuctl.sim.wire.status import Json, invalid_argument
from tpuctl.sim.world.state import copy_json

_MULTI = {"v2": "multisliceParams", "v2alpha1": "multiNodeParams"}
FLEX_START_MAX_S = 604_800.0
"""docs.cloud.google.com/tpu/docs/request-using-flex-start: up to 7 days."""


def expand_specs(spec: Json, queued_id: str, version: str) -> list[Json]:
    """One node spec per node, each with its `nodeId`, as the server shows them after creation."""
    multi = spec.get(_MULTI[version])
    rest = {key: value for key, value in spec.items() if key not in _MULTI.values()}
    if not multi:
        return [{**rest, "nodeId": spec.get("nodeId") or queued_id}]
    count = int(multi.get("nodeCount", 0))
    if count < 2:
        raise invalid_argument("node_count must be greater than 1.")
    prefix = multi.get("nodeIdPrefix") or queued_id
    return [{**copy_json(rest), "nodeId": f"{prefix}-{n}"} for n in range(count)]


def _seconds_until(duration: object, moment: object, now: float, what: str = "queueing policy") -> float | None:
    """Of what is said as a duration or as a moment; None where nothing is. Raises INVALID_ARGUMENT."""
    try:
        if duration:
            return float(str(duration).removesuffix("s"))
        return datetime.fromisoformat(str(moment)).timestamp() - now if moment else None
    except ValueError as error:
        raise invalid_argument(f"Invalid {what}: {error}") from error


def valid_for(policy: Json, now: float) -> float | None:
    """Seconds until a queueing policy lets the request expire; None when it never does."""
    until = policy.get("validUntilTime") or (policy.get("validInterval") or {}).get("endTime")
    return _seconds_until(policy.get("validUntilDuration"), until, now)


def valid_after(policy: Json, now: float) -> float:
    """When a request becomes valid, in seconds since the epoch; 0 for at once."""
    after = policy.get("validAfterTime") or (policy.get("validInterval") or {}).get("startTime")
    seconds = _seconds_until(policy.get("validAfterDuration"), after, now)
    return 0.0 if seconds is None else now + seconds


def run_for(body: Json, now: float) -> float | None:
    """Seconds until a request's nodes are deleted again; None when they stay."""
    run = body.get("runDuration") or {}
    seconds = _seconds_until(run.get("maxRunDuration"), run.get("terminationTime"), now, "run duration")
    if seconds is None and body.get("provisioningModel") == "FLEX_START":
        return FLEX_START_MAX_S
    return seconds


def check_provisioning(body: Json, valid_s: float | None) -> None:
    """What of a request excludes each other, or can never be filled. Raises INVALID_ARGUMENT."""
    model = body.get("provisioningModel")
    if model == "STANDARD" and "spot" in body:
        # The words that gcloud's users were shown, whose alpha track sends both.
        raise invalid_argument("STANDARD provisioning model incompatible with spot requests")
    if len({"spot", "guaranteed", "bestEffort"} & set(body)) > 1:
        raise invalid_argument("Only one tier can be specified.")
    if valid_s is not None and valid_s <= 0:
        raise invalid_argument("The queueing policy ends in the past.")
    run_s = run_for(body, 0.0) if "terminationTime" not in (body.get("runDuration") or {}) else None
    if run_s is not None and not 0 < run_s <= FLEX_START_MAX_S:
        raise invalid_argument("The maximum run duration must be at most 7 days (604800s).")
