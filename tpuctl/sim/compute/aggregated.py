"""Aggregated lists: the resources of all scopes in one answer, by scope."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from tpuctl.sim.compute.catalog import ROOT, Kind
from tpuctl.sim.wire.status import Json
from tpuctl.sim.world.listing import page_of


def aggregated(
    project: str,
    kind: Kind,
    found: Sequence[tuple[str, str, Json]],
    dark: AbstractSet[str],
    scopes: Sequence[str],
    query: Json,
) -> Json:
    """In pages over the resources `found` (scope, name, resource). Scopes without any say so; those that cannot
    be read, `dark`, carry a warning. `project` is `projects/…`."""
    places = {f"{scope}/{name}": scope for scope, name, _ in found}
    rows = [(f"{scope}/{name}", {**data, "_at": f"{scope}/{name}"}) for scope, name, data in found]
    page = page_of(rows, query, "rows")
    items: Json = {scope: _empty(scope) for scope in scopes}
    for row in page.pop("rows", ()):
        scope = places[row.pop("_at")]
        items.setdefault(scope, {}).pop("warning", None)
        items[scope].setdefault(kind.collection, []).append(row)
    unread = sorted(dark & set(items))
    items.update({scope: _unreachable(scope) for scope in unread})
    here = f"{project}/aggregated/{kind.collection}"
    answer = {"kind": f"compute#{kind.singular}AggregatedList", "id": here, "selfLink": f"{ROOT}/{here}"}
    return {**answer, "items": items, **({"unreachables": unread} if unread else {}), **page}


def _empty(scope: str) -> Json:
    return _warning("NO_RESULTS_ON_PAGE", f"There are no results for scope '{scope}' on this page.", scope)


def _unreachable(scope: str) -> Json:
    return _warning("UNREACHABLE", f"Scope '{scope}' is unreachable.", scope)


def _warning(code: str, message: str, scope: str) -> Json:
    return {"warning": {"code": code, "message": message, "data": [{"key": "scope", "value": scope}]}}
