"""List calls: one zone or all of them, in pages, with the zones that could not be read."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from tpuctl.sim.kernel import Json, Kernel, copy_json
from tpuctl.sim.paths import ANY_ZONE, ResourcePath, parse_path
from tpuctl.sim.status import ApiError, Code

DEFAULT_PAGE = 500


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
    """One page in order of name. The token is the last name seen, so pages survive changes in between."""
    size = int(request.get("pageSize") or DEFAULT_PAGE)
    after = _decode(request.get("pageToken") or "")
    rest = sorted((row for row in rows if row[0] > after), key=lambda row: row[0])
    answer: Json = {key: [copy_json(data) for _, data in rest[:size]]}
    if len(rest) > size:
        answer["nextPageToken"] = base64.urlsafe_b64encode(rest[size - 1][0].encode()).decode()
    return answer


def _decode(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ApiError(Code.INVALID_ARGUMENT, "Invalid page token.") from error
