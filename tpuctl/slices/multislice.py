"""The nodes of a multislice seen as one: it lives and dies as a whole, and its workers are counted through.

Worker numbers run from 0 in the order of the nodes, so that worker = index in its node + node * hosts per node,
which is the process id that libtpu's megascale and JAX derive (jax cloud_tpu_cluster).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tpuctl.model.cloud import NodeInfo, NodeState

_WORST_FIRST = (
    NodeState.PREEMPTED,
    NodeState.TERMINATED,
    NodeState.DELETING,
    NodeState.STOPPED,
    NodeState.STOPPING,
    NodeState.HIDDEN,
    NodeState.HIDING,
    NodeState.UNKNOWN,
    NodeState.HALF_MADE,
    NodeState.UNHIDING,
    NodeState.REPAIRING,
    NodeState.RESTARTING,
    NodeState.REIMAGING,
    NodeState.STARTING,
    NodeState.CREATING,
    NodeState.READY,
)
"""One node that is lost is the loss of all, one that is on its way keeps all waiting."""


def combine_nodes(found: Sequence[NodeInfo | None], *, was_whole: bool) -> NodeInfo | None:
    """One node that stands for `found`, which is in the order of the nodes with None for those not there.

    It is called like, and is in the state of, the worst of them; a label is its own where all carry it alike.
    None when none is there, or when `was_whole` and one is missing: what is left of it is of no use.
    """
    there = [node for node in found if node is not None]
    if not there or (was_whole and len(there) < len(found)):
        return None
    worst = min(there, key=lambda node: _WORST_FIRST.index(node.state))
    state = worst.state
    if len(there) < len(found) and state is NodeState.READY:
        state = NodeState.CREATING
    common = set.intersection(*(set(node.labels.items()) for node in there))
    sick = next((node for node in there if node.health not in {"", "HEALTHY", "HEALTH_UNSPECIFIED"}), worst)
    return replace(
        worst,
        uid=",".join(node.uid for node in there),
        state=state,
        health=sick.health,
        health_description=sick.health_description,
        endpoints=tuple(endpoint for node in there for endpoint in node.endpoints) if _whole(found) else (),
        labels=dict(common),
        parts=tuple(there),
    )


def _whole(found: Sequence[NodeInfo | None]) -> bool:
    return all(node is not None and node.endpoints for node in found)
