"""Which permission a call of the GCS JSON API asks for.

https://cloud.google.com/storage/docs/access-control/iam-json; that writing over an object asks for
storage.objects.delete too is left out.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from tpuctl.sim.messages import Request

TEST_PERMISSIONS = re.compile(r"/storage/v1/b/([^/]+)/iam/testPermissions")
_OBJECT = re.compile(r"(?:/resumable)?(?:/upload|/download)?/storage/v1/b/([^/]+)/o(/.+)?")
_BUCKET = re.compile(r"/storage/v1/b(?:/([^/]+))?")
_VERBS = {"GET": "get", "POST": "create", "PUT": "create", "DELETE": "delete", "PATCH": "update"}


def permission_of(request: Request) -> tuple[str, str] | None:
    """The permission and the resource it is asked for; None for calls that need none of those known here."""
    path = request.path.rstrip("/")
    found = _OBJECT.fullmatch(path)
    if found is not None:
        listing = request.method == "GET" and found[2] is None
        verb = "list" if listing else _VERBS.get(request.method, "get")
        return f"storage.objects.{verb}", f"projects/_/buckets/{unquote(found[1])}"
    found = _BUCKET.fullmatch(path)
    if found is None:
        return None
    verb = "list" if found[1] is None and request.method == "GET" else _VERBS.get(request.method, "get")
    return f"storage.buckets.{verb}", f"projects/_/buckets/{unquote(found[1] or '')}"
