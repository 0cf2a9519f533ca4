"""`adopt`: take over a TPU that was made by hand."""

from __future__ import annotations

from tpuctl.cli.confirm import confirm
from tpuctl.cli.context import AppContext
from tpuctl.cli.options import DryRun, Timeout, Yes
from tpuctl.model.requests import AdoptRequest


def adopt(
    context: AppContext,
    request: AdoptRequest,
    timeout: Timeout = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Take over a TPU that was created without tpuctl.

    Afterwards only `tpuctl down NAME` deletes it. Also takes back a slice of a lost store, which is then
    managed as before: created again after a preemption, so a grant must cover it, or you agree to pay.
    """
    from tpuctl.model.shipped_files import load_accelerators
    from tpuctl.slices.adopt import adopt as take_over
    from tpuctl.slices.adopt import find_candidate, price_of
    from tpuctl.slices.reconcile import wait_for_slice
    from tpuctl.views.slices import slice_status

    found = find_candidate(context, request.node, request.zone, request.name)
    catalog, user = load_accelerators(), context.config.login_user
    if dry_run:
        price = price_of(context, catalog, found, user)
        refused = not (request.pay or price.coverage.covered)
        told = {
            "would_adopt": found.name,
            "evidence": found.evidence,
            "price": price.line,
            "not_covered": f"{price.coverage.reason}; without --pay refused" if refused else "",
            "not_kept": ", ".join(found.not_kept),
        }
        context.console.fields(told)
        return
    if found.store not in ("", context.store.identity()):
        other = f"which carries the labels of another fleet ({found.store}) that may still want it"
        confirm(context, f"take over {request.node}, {other}?", yes=yes)
    with context.interruptible(f"the adoption goes on with `{context.shared.typed}`"):
        record = take_over(context, catalog, found, login_user=user, add_key=request.add_key, pay=request.pay)
        if found.not_kept:
            context.console.warn(f"its next TPU will be without {', '.join(found.not_kept)}")
        deadline = context.deadline(timeout)
        wait_for_slice(context, record.name, deadline=deadline)
        status = slice_status(context, record.name)
        context.console.answer(status, f"{record.name} is {status['state']}: {found.evidence}")
