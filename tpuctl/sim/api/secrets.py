"""Secret Manager v1, as far as tpuctl and a person with curl use it: create, addVersion, access.

Secrets live as long as the simulator runs, in its memory only.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from urllib.parse import unquote

from tpuctl.sim.wire.messages import Request, Response, json_response
from tpuctl.sim.wire.payload import parse_body
from tpuctl.sim.wire.status import ApiError, Code, Json, not_found, unknown_method
from tpuctl.sim.world.iam import PROJECT_NUMBER, SECRET_MANAGER
from tpuctl.sim.world.world import World

_SECRETS = r"/v1/projects/(?P<project>[^/:]+)/secrets"
_ONE = _SECRETS + r"/(?P<secret>[^/:]+)"


class SecretsApi:
    """Answers the paths of `owns`; raises ApiError for refusals."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._secrets: dict[str, list[bytes]] = {}
        rows: tuple[tuple[str, str, str, Callable[..., Json]], ...] = (
            ("POST", _SECRETS, "secretmanager.secrets.create", self._create),
            ("POST", _ONE + ":addVersion", "secretmanager.versions.add", self._add),
            (
                "GET",
                _ONE + r"/versions/(?P<version>\d+|latest):access",
                "secretmanager.versions.access",
                self._access,
            ),
        )
        self._routes = [(verb, re.compile(path), permission, handle) for verb, path, permission, handle in rows]

    def owns(self, path: str) -> bool:
        """Whether a path below /v1, which several APIs share, is of this one."""
        return re.match(_SECRETS, unquote(path)) is not None

    def handle(self, request: Request) -> Response:
        path, access = unquote(request.path), self._world.access
        for verb, pattern, permission, handle in self._routes:
            found = pattern.fullmatch(path)
            if found is None or verb != request.method:
                continue
            access.check_token()
            access.check_service(SECRET_MANAGER)
            parts = found.groupdict()
            if parts.pop("project") not in (self._world.options.project, PROJECT_NUMBER):
                raise ApiError(Code.PERMISSION_DENIED, "The caller does not have permission")
            access.check_permission(permission, f"projects/{PROJECT_NUMBER}/secrets")
            return json_response(handle(request, **parts))
        raise unknown_method(f"{request.method} {path}")

    def _create(self, request: Request) -> Json:
        name = (request.query.get("secretId") or [""])[-1]
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,255}", name):
            raise ApiError(
                Code.INVALID_ARGUMENT, f"The provided Secret ID [{name}] does not match the expected format."
            )
        if name in self._secrets:
            raise ApiError(Code.ALREADY_EXISTS, f"Secret [{self._name(name)}] already exists.")
        parse_body(request)
        self._secrets[name] = []
        return {"name": self._name(name), "replication": {"automatic": {}}}

    def _add(self, request: Request, secret: str) -> Json:
        versions = self._versions(secret)
        payload = parse_body(request).get("payload")
        try:
            versions.append(base64.b64decode(str((payload or {}).get("data", "")), validate=True))
        except (binascii.Error, AttributeError) as error:
            raise ApiError(Code.INVALID_ARGUMENT, "Invalid value at 'payload.data' (TYPE_BYTES)") from error
        return {"name": f"{self._name(secret)}/versions/{len(versions)}", "state": "ENABLED"}

    def _access(self, _request: Request, secret: str, version: str) -> Json:
        versions = self._versions(secret)
        number = len(versions) if version == "latest" else int(version)
        name = f"{self._name(secret)}/versions/{version}"
        if not 1 <= number <= len(versions):
            raise ApiError(Code.NOT_FOUND, f"Secret Version [{name}] not found.")
        data = base64.b64encode(versions[number - 1]).decode()
        return {"name": f"{self._name(secret)}/versions/{number}", "payload": {"data": data}}

    def _versions(self, secret: str) -> list[bytes]:
        if secret not in self._secrets:
            raise not_found(f"Secret [{self._name(secret)}]")
        return self._secrets[secret]

    @staticmethod
    def _name(secret: str) -> str:
        return f"projects/{PROJECT_NUMBER}/secrets/{secret}"
