"""Delete what the cloud shows of an incarnation of a slice, after proof that it is ours."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tpuctl.core.ownership import Refusal, claim_of
from tpuctl.core.plan import Blocked, Wait
from tpuctl.core.reap import Found, node_found, queued_found
from tpuctl.workflows.deleting import delete_tpu
from tpuctl.workflows.events import StepDone, StepStarted
from tpuctl.workflows.held_slice import HeldSlice
from tpuctl.workflows.loop import Outcome


def delete_incarnation(held: HeldSlice) -> Outcome:
    """Asks the cloud to delete it; later steps look whether it is gone."""
    services, name = held.services, held.incarnation.cloud_name
    began = services.clock.now()
    # Written in any case: it fails when somebody took the slice over while this process slept too long.
    life = replace(held.incarnation, unseen_since=None) if held.look.shown else held.incarnation
    held.save(replace(held.record, state=held.plan.state, incarnation=life))
    for found in _doomed(held):
        claim = claim_of(held.record, held.incarnation, services.store.identity(), found.kind)
        refused = delete_tpu(services, found, claim, partial(_decide_delete, held))
        if refused is not None:
            return _kept(held, refused)
    services.emit(StepDone(held.record.name, f"delete {name}", "asked", services.clock.now() - began))
    # Not "acted": the deletion takes its time, and looking again at once would only ask once more.
    return Outcome(Wait(f"{name} to be gone"), acted=False)


def _doomed(held: HeldSlice) -> list[Found]:
    """What the look showed of it: its queued resource, which takes its nodes along, or these."""
    view = held.look.view
    if view.queued is not None:
        return [queued_found(view.queued)]
    return [node_found(node) for node in (view.node.parts or (view.node,))] if view.node else []


def _decide_delete(held: HeldSlice, found: Found) -> Refusal | None:
    held.journal("delete", held.plan.why)
    held.services.emit(StepStarted(held.record.name, f"delete {found.name}", held.plan.why))
    return None


def _kept(held: HeldSlice, refused: Refusal) -> Outcome:
    """Not proved to be ours: said once in the trail, and to a person each time."""
    if held.incarnation.kept != refused.why:
        held.journal("kept", refused.why)
        held.save(held.changed(kept=refused.why))
    return Outcome(Blocked(f"nothing is deleted: {refused.why}", refused.hint), acted=False)
