"""List calls: one zone or all, filtered, in order and in pages, with the zones that could not be read."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable

from tpuctl.sim.wire.filters import parse_filter
from tpuctl.sim.wire.status import ApiError, Code, Json, invalid_argument
from tpuctl.sim.world.paths import ANY_ZONE, ResourcePath, parse_path
from tpuctl.sim.world.state import Kernel, copy_json

DEFAULT_PAGE = 500
_NEWEST_FIRST = "creationTimestamp desc"


def list_resources(kernel: Kernel, request: Json, key: str, found: Iterable[tuple[ResourcePath, Json]]) -> Json:
    """Answers a list call on a parent or the wildcard `-`; absent zones are named in `unreachable`."""
    parent = parse_path(request["parent"])
    zones = kernel.catalog.zones()
    dark = set(kernel.faults.unreachable_zones(zones))
    if parent.zone != ANY_ZONE:
        kernel.check_zone(parent)
        if parent.zone in dark:
            raise ApiError(Code.UNAVAILABLE, "The service is currently unavailable.")
    else:
        kernel.check_zone(ResourcePath(parent.project, zones[0]))
    rows = [
        (path.name, data)
        for path, data in found
        if parent.zone in (ANY_ZONE, path.zone) and path.zone not in dark
    ]
    answer = page_of(rows, request, key)
    if parent.zone == ANY_ZONE and dark:
        answer["unreachable"] = [ResourcePath(parent.project, zone).location for zone in sorted(dark)]
    return answer


def page_of(rows: list[tuple[str, Json]], request: Json, key: str) -> Json:
    """One page of what `filter` selects, by name unless `orderBy` says otherwise. The token is the place of the
    last one seen in that order, so pages survive changes in between."""
    size = int(request.get("pageSize") or DEFAULT_PAGE)
    if size < 0:
        raise invalid_argument(f"Invalid page size: {size}. It must not be negative.")
    order = str(request.get("orderBy") or "name").strip()
    if order not in ("name", "name asc", _NEWEST_FIRST):
        raise invalid_argument(f"Invalid value for field 'orderBy': '{order}'. Use name or {_NEWEST_FIRST}.")
    down = order == _NEWEST_FIRST
    selects = parse_filter(str(request.get("filter") or ""))
    keyed = [
        ([str(data.get("creationTimestamp")) if down else "", name], data)
        for name, data in rows
        if selects(data)
    ]
    keyed.sort(key=lambda row: row[0], reverse=down)
    after = _decode(request.get("pageToken") or "")
    rest = [row for row in keyed if after is None or (row[0] < after if down else row[0] > after)]
    # An empty list is left out, as JSON of both proto3 and Compute Engine has it.
    answer: Json = {key: [copy_json(data) for _, data in rest[:size]]} if rest else {}
    if len(rest) > size:
        answer["nextPageToken"] = base64.urlsafe_b64encode(json.dumps(rest[size - 1][0]).encode()).decode()
    return answer


def _decode(token: str) -> list[str] | None:
    if not token:
        return None
    try:
        place = json.loads(base64.b64decode(token, altchars=b"-_", validate=True))
        if not isinstance(place, list) or [type(part) for part in place] != [str, str]:
            raise ValueError(token)
    except (binascii.Error, ValueError, RecursionError) as error:
        raise invalid_argument("Invalid page token.") from error
    return place
