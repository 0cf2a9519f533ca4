"""Which permission a call of Cloud Storage asks for, and how callers without credentials are turned away.

https://cloud.google.com/storage/docs/access-control/iam-json; that writing over an object asks for
storage.objects.delete too is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from tpuctl.sim.gcs.methods import DOWNLOADS, JSON, JSON_PATHS, UPLOADS, find_method
from tpuctl.sim.gcs.wire import GcsError, decode
from tpuctl.sim.wire.messages import Request

_JSON_PREFIXES = (*UPLOADS, DOWNLOADS, JSON)
_VERBS: Mapping[str, str] = {
    "insert": "create",
    "lockRetentionPolicy": "update",
    "patch": "update",
    "compose": "create",
    "move": "move",
}
_COPIES = ("copy", "rewrite")
_KINDS = ("buckets", "objects", "folders", "managedFolders")
_FREE = ("testIamPermissions", "getStorageLayout")
_XML_VERBS: Mapping[str, str] = {"PUT": "create", "POST": "create", "DELETE": "delete"}


def bucket_of(request: Request) -> str:
    """The bucket that a request names; empty where it names none."""
    prefix = next((each for each in _JSON_PREFIXES if request.path.startswith(each)), None)
    if prefix is None:
        return "" if request.path.startswith("/batch/") else decode(request.path.split("/")[1])
    collection, _, below = request.path.removeprefix(prefix).partition("/")
    return decode(below.partition("/")[0]) if collection == "b" else ""


def permissions_of(request: Request) -> list[tuple[str, str]]:
    """The permissions that a call needs, and the bucket of each; none for calls that need none of those known
    here."""
    prefix = next((each for each in _JSON_PREFIXES if request.path.startswith(each)), None)
    if prefix is None:
        return _xml_permissions(request)
    try:
        verb = "POST" if prefix in UPLOADS else request.method
        found, names = find_method(verb, request.path[len(prefix) :].rstrip("/"))
    except GcsError:
        return []
    collection, _, verb = found.id.partition(".")
    if collection not in _KINDS or verb in _FREE:
        return []
    bucket = names[0] if names else ""
    if verb in _COPIES:
        return [("storage.objects.create", names[2]), ("storage.objects.get", bucket)]
    return [(f"storage.{collection}.{_VERBS.get(verb, verb)}", bucket)]


def _xml_permissions(request: Request) -> list[tuple[str, str]]:
    bucket, _, name = request.path.removeprefix("/").partition("/")
    if not bucket or request.path.startswith("/batch/"):
        return []
    verb = _XML_VERBS.get(request.method, "get")
    if name:
        return [(f"storage.objects.{verb}", decode(bucket))]
    listing = request.method == "GET"
    return [("storage.objects.list" if listing else f"storage.buckets.{verb}", decode(bucket))]


def asks_permissions(request: Request) -> bool:
    """Whether a call asks which permissions its caller has for a bucket, which everybody may."""
    return request.path.startswith(JSON_PATHS) and request.path.endswith("/iam/testPermissions")


def resource(bucket: str) -> str:
    """A bucket's name as refusals have it."""
    return f"projects/_/buckets/{bucket}"


def no_access(who: str, permission: str, status: int, place: tuple[str, str] | None = None) -> GcsError:
    """In Google's words."""
    kind = "bucket" if ".buckets." in permission or permission.endswith(".list") else "object"
    return GcsError(
        status,
        f"{who} does not have {permission} access to the Google Cloud Storage {kind}. Permission "
        f"'{permission}' denied on resource (or it may not exist).",
        place=place,
    )


def unauthenticated(request: Request) -> GcsError:
    """Without credentials 401 by the JSON API and 403 by the XML API, with wrong ones 401. The issues
    fsspec/gcsfs 546, openai/glow 60 and apache/arrow-rs-object-store 158 quote Google's answers."""
    place = ("header", "Authorization")
    xml = not request.path.startswith(JSON_PATHS)
    if request.headers.get("authorization"):
        text = "Authentication required." if xml else "Invalid Credentials"
        return GcsError(401, text, reason="authError", place=place)
    try:
        needed = permissions_of(request)
    except GcsError:
        needed = []
    permission = needed[0][0] if needed else "storage.objects.get"
    return no_access("Anonymous caller", permission, 403 if xml else 401, place)
