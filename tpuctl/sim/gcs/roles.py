"""Roles in the policies of buckets: what they hold, and which policies can be set. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from tpuctl.model.shipped_files import load_sim_storage
from tpuctl.sim.gcs.wire import Data, GcsError, etag, invalid, not_implemented

ROLES: Mapping[str, tuple[str, ...]] = {
    role: tuple(f"storage.{each}" for each in permissions)
    for role, permissions in load_sim_storage()["roles"].items()
}
"""Permissions of each role, as patterns of the shell."""
_MEMBER = re.compile(
    r"allUsers|allAuthenticatedUsers|(deleted:)?(user|serviceAccount|group|domain|principal|principalSet|"
    r"projectOwner|projectEditor|projectViewer):\S+"
)
EVERYBODY = "allUsers"
"""Who calls without credentials."""
_PUBLIC = (EVERYBODY, "allAuthenticatedUsers")


def default_policy(bucket: Mapping[str, Any]) -> Data:
    """What everybody may do with a new bucket."""
    project = bucket.get("project") or ""
    teams = [f"projectEditor:{project}", f"projectOwner:{project}"]
    owners = {"role": "roles/storage.legacyBucketOwner", "members": teams}
    viewers = {"role": "roles/storage.legacyBucketReader", "members": [f"projectViewer:{project}"]}
    return {"version": 1, "etag": "CAE=", "bindings": [owners, viewers]}


def changed_policy(old: Mapping[str, Any], asked: Mapping[str, Any], change: int) -> Data:
    """The policy that `asked` describes, for who knows the old one. Raises GcsError."""
    if asked.get("etag") not in (None, "", old["etag"]):
        raise GcsError(412, "At least one of the pre-conditions you specified did not hold.")
    bindings: dict[str, list[str]] = {}
    for binding in asked.get("bindings") or []:
        role, members = str(binding.get("role") or ""), binding.get("members") or []
        if binding.get("condition"):
            raise not_implemented("conditions of roles (bindings.condition)")
        if re.match("(projects|organizations)/", role):
            raise not_implemented(f"roles of your own ({role})")
        if role not in ROLES:
            raise invalid(f"Role {role} is not supported for this resource.")
        wrong = [each for each in members if not _MEMBER.fullmatch(each)]
        if wrong:
            raise invalid(f"Invalid argument: The member {wrong[0]} is of an unknown type.")
        known = bindings.setdefault(role, [])
        known += [each for each in members if each not in known]
    shown = [{"role": role, "members": members} for role, members in sorted(bindings.items()) if members]
    return {"version": 1, "etag": etag(change), "bindings": shown}


def permits(policy: Mapping[str, Any], account: str, permission: str) -> bool:
    """Whether a service account, or everybody, has a permission by a role in the policy."""
    members = {EVERYBODY} if account == EVERYBODY else {f"serviceAccount:{account}", *_PUBLIC}
    return any(
        fnmatchcase(permission, pattern)
        for binding in policy["bindings"]
        if members & set(binding.get("members", ()))
        for pattern in ROLES.get(binding["role"], ())
    )
