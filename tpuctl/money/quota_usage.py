"""Names in a quota's refusal who holds that quota, so that it says whom to ask."""

from __future__ import annotations

from collections.abc import Sequence

from tpuctl.engine.services import Services, list_queued
from tpuctl.errors import QuotaError, TpuctlError
from tpuctl.model.cloud import CloudErrorInfo
from tpuctl.model.error_table import ErrorKind, classify
from tpuctl.model.shipped_files import load_accelerators, load_error_table
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.money.quotas import Holding, find_holdings, holders_of

NAMED_MAX = 5
NOBODY = "somebody without tpuctl"


def holders(services: Services, spec: SliceSpec) -> tuple[Holding, ...]:
    """Everything in the project that draws on the quotas of a slice, the largest first."""
    catalog = load_accelerators()
    generation = catalog.of(spec.accelerator_type, spec.topology).generation
    # Each API has a pool of its own.
    nodes, queued = services.tpus(spec.api).list_nodes(), list_queued(services, spec.api)
    held = find_holdings(catalog, nodes.items, queued.items)
    return holders_of(held, generation, spec.zone, spec.tier)


def name_holders(services: Services, spec: SliceSpec, error: QuotaError, *, own: str = "") -> QuotaError:
    """The same refusal with the holders of that quota in its words and details; `own` is what was refused.

    It stays as it was if they cannot be read.
    """
    try:
        found = [each for each in holders(services, spec) if each.resource.name != own]
    except TpuctlError:
        return error  # the refusal is the news; who holds the rest is an extra
    if not found:
        return error
    rows = [
        {
            "user": each.resource.user,
            "name": each.resource.name,
            "zone": each.resource.location,
            "chips": each.chips or 0,
            "state": each.resource.state,
        }
        for each in found
    ]
    message = f"{error.message}; {_in_words(found)}"
    return QuotaError(message, hint=error.hint, details={**error.details, "holders": rows})


def quota_error(error: CloudErrorInfo | None, *, queued: bool, what: str) -> QuotaError | None:
    """The refusal by a quota that came after the create was taken: in its operation, or in a queued resource.

    None for another error, and for a quota of helper resources, which no TPU holds. `what` is its words.
    """
    if error is None:
        return None
    kind = classify(
        load_error_table(),
        rpc_code=error.code,
        message=error.message,
        details=error.details,
        queued=queued,
    )
    return QuotaError(what, details={"kind": str(kind)}) if kind is ErrorKind.QUOTA else None


def _in_words(found: Sequence[Holding]) -> str:
    more = f", and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    return ", ".join(_words(each) for each in found[:NAMED_MAX]) + more


def _words(held: Holding) -> str:
    found = held.resource
    return f"{found.user or NOBODY} holds {found.name} ({found.type}, {found.location}, {found.state})"
