"""Secret Manager v1, as far as tpuctl and a person with curl use it: making, reading and listing secrets and
versions, and deleting secrets.

Secrets live as long as the simulator runs, in its memory only.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping

import google_crc32c

from tpuctl.sim.wire.messages import Request
from tpuctl.sim.wire.payload import parse_body
from tpuctl.sim.wire.status import ApiError, Code, Json, invalid_argument, not_found, unknown_method
from tpuctl.sim.wire.timestamps import rfc3339
from tpuctl.sim.world.iam import PROJECT_NUMBER
from tpuctl.sim.world.listing import page_of
from tpuctl.sim.world.world import World

Handler = Callable[..., Json]
"""What answers a call: by the request, what it asks for in known types, and the names in its path."""


class SecretsApi:
    """Raises ApiError for refusals."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._secrets: dict[str, list[bytes]] = {}
        self._shown: dict[str, Json] = {}

    def handlers(self) -> Mapping[str, Handler]:
        """By call, for the API of the project, which has the same paths."""
        return {
            "secrets.create": self._create,
            "secrets.list": self._list,
            "secrets.get": self._get,
            "secrets.delete": self._delete,
            "versions.list": self._list_versions,
            "versions.get": self._get_version,
            "versions.add": self._add,
            "versions.access": self._access,
        }

    def _create(self, request: Request, _asked: Json) -> Json:
        name = (request.query.get("secretId") or [""])[-1]
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,255}", name):
            raise invalid_argument(f"The provided Secret ID [{name}] does not match the expected format.")
        if name in self._secrets:
            raise ApiError(Code.ALREADY_EXISTS, f"Secret [{self._name(name)}] already exists.")
        asked = {key: value for key, value in parse_body(request).items() if value and key != "name"}
        unknown = sorted(set(asked) - {"replication", "labels", "annotations"})
        if unknown:
            raise unknown_method(f"'{unknown[0]}' of secrets")
        self._secrets[name] = []
        times = {"createTime": rfc3339(self._world.clock.now())}
        self._shown[name] = {"name": self._name(name), "replication": {"automatic": {}}, **asked, **times}
        return self._shown[name]

    def _get(self, _request: Request, _asked: Json, secret: str) -> Json:
        self._versions(secret)
        return self._shown[secret]

    def _list(self, request: Request, _asked: Json) -> Json:
        if request.query.get("filter"):
            raise unknown_method("filters of lists of secrets")
        return _page(request, [(each["name"], each) for each in self._shown.values()], "secrets")

    def _delete(self, _request: Request, _asked: Json, secret: str) -> Json:
        self._versions(secret)
        del self._secrets[secret], self._shown[secret]
        return {}

    def _version(self, secret: str, number: int) -> Json:
        return {"name": f"{self._name(secret)}/versions/{number}", "state": "ENABLED"}

    def _list_versions(self, request: Request, _asked: Json, secret: str) -> Json:
        """The newest first."""
        numbers = range(len(self._versions(secret)), 0, -1)
        rows = [(f"{10**9 - number}", self._version(secret, number)) for number in numbers]
        return _page(request, rows, "versions")

    def _get_version(self, _request: Request, _asked: Json, secret: str, version: str) -> Json:
        return self._version(secret, self._number(secret, version))

    def _add(self, request: Request, _asked: Json, secret: str) -> Json:
        versions = self._versions(secret)
        payload = parse_body(request).get("payload")
        try:
            versions.append(base64.b64decode(str((payload or {}).get("data", "")), validate=True))
        except (binascii.Error, AttributeError) as error:
            raise invalid_argument("Invalid value at 'payload.data' (TYPE_BYTES)") from error
        return self._version(secret, len(versions))

    def _access(self, _request: Request, _asked: Json, secret: str, version: str) -> Json:
        number = self._number(secret, version)
        content = self._versions(secret)[number - 1]
        payload = {
            "data": base64.b64encode(content).decode(),
            "dataCrc32c": str(google_crc32c.value(content)),
        }
        return {"name": f"{self._name(secret)}/versions/{number}", "payload": payload}

    def _number(self, secret: str, version: str) -> int:
        known = len(self._versions(secret))
        number = known if version == "latest" else int(version) if version.isdecimal() else 0
        if not 1 <= number <= known:
            name = f"{self._name(secret)}/versions/{version}"
            raise ApiError(Code.NOT_FOUND, f"Secret Version [{name}] not found.")
        return number

    def _versions(self, secret: str) -> list[bytes]:
        if secret not in self._secrets:
            raise not_found(f"Secret [{self._name(secret)}]")
        return self._secrets[secret]

    @staticmethod
    def _name(secret: str) -> str:
        return f"projects/{PROJECT_NUMBER}/secrets/{secret}"


def _page(request: Request, rows: list[tuple[str, Json]], key: str) -> Json:
    asked: Json = {name: values[-1] for name, values in request.query.items()}
    size = str(asked.pop("pageSize", "0"))
    if not size.isdecimal() or len(size) > 9:
        raise invalid_argument(f"Invalid value at 'page_size' (TYPE_INT32), \"{size}\"")
    return page_of(rows, {**asked, "pageSize": int(size)}, key)
