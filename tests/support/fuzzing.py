"""Seeded nonsense for the simulator's APIs: requests that are nearly right, and what must hold after them."""

from __future__ import annotations

import http.client
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import grpc
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport
from google.protobuf import json_format

from tests.sim.test_tpu import grpc_channel, rest_client
from tests.support.sim import RunningSim
from tpuctl.model.accelerators import Catalog
from tpuctl.sim.api.tpu_grpc import request_classes
from tpuctl.sim.api.tpu_rest import routes_of
from tpuctl.sim.wire.payload import ApiTypes, load_types

ZONE = "us-central2-b"
WORDS = (
    "",
    "a",
    "b",
    "q",
    "-",
    "default",
    "A_B",
    "x" * 64,
    "é",
    "a/b",
    "..",
    "\x00",
    "%",
    "{zone}",
    "us-central2-b",
)
PROJECTS = (*["sim-project"] * 20, "other", "-", "")
ZONES = (*[ZONE] * 15, "us-central1-a", "-", "mars-1", "")
SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 5, 2**31, 2**63, 2**64, 1.5, 1e308, "", "x", "true", "5", "1e3", "NaN"),
    *("3600s", "-5s", "9999999999999s", "2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"),
    *("READY", "V4", "BOGUS", "v4-8", "v4-16", "2x2x1", "tpu-ubuntu2204-base", "a" * 300, "\ud800", "\u0000"),
    *([], {}, [[]], [None], [{}], {"a": None}, {"": ""}, "projects/sim-project/zones/us-central2-b/disks/a"),
)
COLLECTIONS = (
    *("disks", "snapshots", "images", "addresses", "instances", "operations", "machineTypes", "diskTypes"),
    *("networks", "subnetworks", "firewalls", "reservations", "routers", "zones", ""),
)
BODIES = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'"x"',
    b"{}",
    b'{"a": NaN}',
    b"[" * 5000,
    b'{"name": "' + b"x" * 9000,
)
STORAGE = (
    *("/storage/v1/b", "/storage/v1/b/{}", "/storage/v1/b/{}/o", "/storage/v1/b/{}/o/{}", "/{}/{}", "/{}"),
    *("/upload/storage/v1/b/{}/o", "/download/storage/v1/b/{}/o/{}", "/storage/v1/b/{}/o/{}/compose"),
    *("/storage/v1/b/{}/o/{}/rewriteTo/b/{}/o/a", "/storage/v1/b/{}/o/{}/moveTo/o/{}", "/batch/storage/v1"),
    *("/storage/v1/b/{}/folders", "/storage/v1/b/{}/iam", "/storage/v1/b/{}/o/{}/restore"),
)
GOOD_NODE = {"acceleratorType": "v4-8", "runtimeVersion": "tpu-ubuntu2204-base"}


def few_chips(catalog: Catalog) -> dict[str, int]:
    """Quotas that hold two small nodes in each zone: hosts are processes."""
    return {zone: 8 for each in catalog.types.values() if each.in_tpu_api for zone in each.zones}


@dataclass
class Fuzzer:
    """Sends requests that a seed decides to every API of one simulator; `failures` holds what must not be."""

    sim: RunningSim
    seed: int
    sent: int = 0
    failures: list[str] = field(default_factory=list)
    answered: Counter[int] = field(default_factory=Counter)
    """How often which HTTP status came."""

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._port = int(self.sim.endpoint.rsplit(":", 1)[1])
        self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        self._channel = grpc_channel(self.sim, self.sim.token)
        self._requests = request_classes()

    def make_bucket(self) -> None:
        """The bucket that is there, whatever was deleted meanwhile."""
        self.ask("POST", "/storage/v1/b?project=sim-project", b'{"name": "fuzz-bucket"}')

    def close(self) -> None:
        self._connection.close()
        self._channel.close()

    def run(self, count: int) -> None:
        """`count` requests, one in six by gRPC."""
        self.make_bucket()
        for _ in range(count):
            self.sent += 1
            if self._chance.random() < 1 / 6:
                self._send_grpc()
            else:
                self._send(
                    *self._chance.choice((self._tpu, self._tpu, self._compute, self._project, self._storage))()
                )

    # Values.

    def _pick(self, values: Any) -> Any:
        return self._chance.choice(values)

    def _value(self, types: ApiTypes, kind: str, depth: int = 0) -> Any:
        """A value of a type, or of another one."""
        chance = self._chance.random()
        if chance < 0.04 or depth > 6:
            return self._pick(SCALARS)
        if kind.startswith("["):
            items = [
                self._value(types, kind[1:-1], depth + 1) for _ in range(self._chance.choice((1, 1, 1, 0, 2)))
            ]
            return items if chance > 0.2 else self._value(types, kind[1:-1], depth + 1)
        if kind.startswith("{"):
            return {self._pick(WORDS): self._value(types, kind[1:-1], depth + 1) for _ in range(2)}
        if kind in types.messages:
            return self._message(types, kind, depth + 1)
        if kind in types.enums:
            return self._pick([*types.enums[kind], *types.enums[kind].values(), "BOGUS"])
        return self._pick(SCALARS)

    def _message(self, types: ApiTypes, name: str, depth: int = 0) -> Any:
        fields = list(types.messages[name])
        chosen = self._chance.sample(fields, min(len(fields), self._chance.choice((0, 0, 1, 1, 2, 4))))
        if name == "QueuedResource" and self._chance.random() < 0.9:
            chosen.append("tpu")
        if name == "QueuedResource.Tpu":
            chosen = ["nodeSpec"]
        message = {each: self._value(types, types.messages[name][each], depth) for each in chosen}
        if name == "Node" and self._chance.random() < 0.9:
            message |= GOOD_NODE
        if name.endswith("NodeSpec") and self._chance.random() < 0.9:
            given = message.get("node")
            node = {**GOOD_NODE, **given} if isinstance(given, dict) else GOOD_NODE
            message |= {"nodeId": self._pick(["a", "b", "c"]), "node": node}
        if self._chance.random() < 0.05:
            message[self._pick(["bogus", "name ", "", "id"])] = self._pick(SCALARS)
        return message

    def _query(self, known: Mapping[str, str]) -> dict[str, str]:
        names = [*known, "filter", "pageToken", "maxResults", "bogus", "alt"]
        chosen = self._chance.sample(names, self._chance.choice((0, 0, 0, 1, 2)))
        found = {name: str(self._pick(SCALARS)) for name in chosen}
        if "filter" in found:
            found["filter"] = self._pick(
                ["name=a", "name eq (", "((", "labels.a:*", "x" * 5000, "name ne '", "a.b.c<5"]
            )
        return found

    # Requests: verb, path, query, body.

    def _tpu(self) -> tuple[str, str, dict[str, str], Any]:
        version = self._pick(["v1", "v2", "v2", "v2alpha1"])
        call = self._pick(routes_of(version)).call
        verb, template, rpc, body = call.verb, call.template, call.rpc, call.body
        types = load_types(f"tpu.{version}")
        path = "".join(
            self._fill(part) for part in template.replace("{", "\n{").replace("}", "}\n").split("\n")
        )
        query = self._query(types.queries[rpc])
        if "Id" in str(types.queries[rpc]) and self._chance.random() < 0.8:
            query |= {name: self._pick(["a", "b", "q"]) for name in types.queries[rpc] if name.endswith("Id")}
        if rpc == "UpdateNode":
            query["updateMask"] = self._pick(
                ["labels", "metadata", "network_config", "tags,description", "state", "", ",", "dataDisks"]
            )
        sent: Any = None
        if body:
            message = {"node": "Node", "queuedResource": "QueuedResource"}.get(body, f"{rpc}Request")
            sent = self._message(types, message) if message in types.messages else self._pick(SCALARS)
        return verb if self._chance.random() > 0.03 else "PUT", f"/{version}/{path}", query, sent

    def _fill(self, part: str) -> str:
        if not part.startswith("{"):
            return part
        pieces = part[1:-1].split("=", 1)[1].split("/")
        if len(pieces) > 1:
            pieces[1] = self._pick(PROJECTS)
        if len(pieces) > 3:
            pieces[3] = self._pick(ZONES)
        if len(pieces) > 5:
            pieces[5] = self._pick([*["a", "b", "q"] * 8, *WORDS])
        return "/".join(quote(piece, safe="%./") for piece in pieces)

    def _compute(self) -> tuple[str, str, dict[str, str], Any]:
        place = self._pick([f"zones/{self._pick(ZONES)}", "regions/us-central2", "global", "aggregated", ""])
        collection = self._pick(COLLECTIONS)
        tail = self._pick(["", "", f"/{quote(self._pick(WORDS))}", "/a", "/a/wait", "/a/resize"])
        path = f"/compute/v1/projects/{self._pick(PROJECTS)}/{place}/{collection}{tail}"
        types = load_types("compute.v1")
        message = self._pick(["Disk", "Snapshot", "Image", "Address"])
        body = self._message(types, message)
        body = {**body, "name": self._pick(["a", "b"])} if self._chance.random() < 0.7 else body
        verb = self._pick(["GET", "GET", "POST", "POST", "DELETE", "PATCH"])
        return verb, path, self._query({"requestId": "", "orderBy": ""}), body if verb == "POST" else None

    def _project(self) -> tuple[str, str, dict[str, str], Any]:
        project = self._pick(PROJECTS)
        path = self._pick(
            [
                f"/v1/projects/{project}",
                f"/v3/projects/{project}:testIamPermissions",
                f"/v1/projects/{project}/services",
                f"/v1/projects/{project}/services:batchGet",
                f"/v1/projects/{project}/services/{quote(self._pick(WORDS), safe='')}:enable",
                f"/v1/projects/{project}/locations/global/services/tpu.googleapis.com/quotaInfos",
            ]
        )
        verb = self._pick(["GET", "POST"])
        return verb, path, self._query({"names": "", "pageSize": ""}), {"permissions": self._pick(SCALARS)}

    def _storage(self) -> tuple[str, str, dict[str, str], Any]:
        names = [*["fuzz-bucket", "a", "b"] * 6, *WORDS]
        path = self._pick(STORAGE).format(*(quote(self._pick(names), safe="") for _ in range(3)))
        known = ("prefix", "delimiter", "pageToken", "ifGenerationMatch", "uploadType", "name", "generation")
        known += ("project", "maxResults", "matchGlob", "versions", "softDeleted", "projection", "alt")
        chosen = self._chance.sample(known, self._chance.choice((0, 1, 1, 2, 4)))
        odd = [*SCALARS, "media", "resumable", "multipart", "**", "[", "a", "0"]
        query = {name: str(self._pick(odd)) for name in chosen}
        if path == "/storage/v1/b":
            query["project"] = "sim-project"
        fields = (
            "name",
            "metadata",
            "labels",
            "storageClass",
            "versioning",
            "softDeletePolicy",
            "sourceObjects",
        )
        body = {name: self._pick([*SCALARS, "fuzz-bucket"]) for name in self._chance.sample(fields, 2)}
        return self._pick(["GET", "GET", "POST", "DELETE", "PATCH", "PUT", "HEAD"]), path, query, body

    # Sending.

    def _send(self, verb: str, path: str, query: dict[str, str], body: Any) -> None:
        text = None if body is None else json.dumps(body).encode()
        if text is not None and self._chance.random() < 0.03:
            text = self._pick(BODIES)
        pairs = [(key, value.encode("utf-8", "replace")) for key, value in query.items()]
        url = f"{path}?{urlencode(pairs)}"
        status, answer = self.ask(verb, url, text)
        self.answered[status] += 1
        if status >= 500 or status == 0:
            self.failures.append(f"{status} {verb} {url} {text!r}: {answer!r}")

    def ask(self, verb: str, url: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body; 0 when the server hung up."""
        headers = {"authorization": f"Bearer {self.sim.token}", "content-type": "application/json"}
        try:
            self._connection.request(verb, url, body=body, headers=headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (http.client.HTTPException, ConnectionError) as error:
            self._connection.close()
            return 0, repr(error).encode()

    def _send_grpc(self) -> None:
        service = self._pick(["google.cloud.tpu.v2.Tpu", "google.cloud.tpu.v2alpha1.Tpu"])
        path = self._pick(sorted(each for each in self._requests if each.startswith(f"/{service}/")))
        kind = self._requests[path]
        types = load_types(f"tpu.{service.split('.')[3]}")
        location = f"projects/{self._pick(PROJECTS)}/locations/{self._pick(ZONES)}"
        collection = self._pick(["nodes", "queuedResources", "operations"])
        name = f"{location}/{collection}/{self._pick([*['a', 'b', 'q'] * 8, *WORDS])}"
        given = {
            "parent": location,
            "name": name,
            "nodeId": self._pick(["a", "b"]),
            "queuedResourceId": self._pick(["q", "r"]),
            "node": {**self._message(types, "Node"), "name": name},
            "queuedResource": self._message(types, "QueuedResource"),
            "updateMask": self._pick(["labels", "metadata", "tags", "state"]),
            "pageSize": self._pick([0, 1, -1, 2**31 - 1]),
            "pageToken": self._pick(WORDS[:4]),
        }
        message = kind()
        for key, value in given.items():
            try:
                json_format.ParseDict({key: value}, message, ignore_unknown_fields=True)
            except (json_format.ParseError, ValueError, TypeError, RecursionError, SystemError):
                continue  # it is no message: nobody could send it
        payload = message.SerializeToString()
        if self._chance.random() < 0.1:
            payload = bytes(self._chance.randrange(256) for _ in range(20))
        call = self._channel.unary_unary(path)
        try:
            call(payload, timeout=60)
        except grpc.RpcError as error:
            broken = "Exception deserializing request" in error.details()  # bytes that are no message
            if error.code() in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL) and not broken:
                self.failures.append(f"{error.code()} {path} {message}: {error.details()}")

    # What must hold.

    def check_lists(self) -> None:
        """Everything that is stored can be listed, by Google's own clients and as JSON."""
        self.make_bucket()
        assert self.sim.world.settle()
        grpc_client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=self._channel))
        everywhere = "projects/sim-project/locations/-"
        for client in (rest_client(self.sim.endpoint, self.sim.token), grpc_client):
            list(client.list_nodes(parent=everywhere))
            list(client.list_queued_resources(parent=everywhere))
        here = f"projects/sim-project/locations/{ZONE}"
        grpc_client.list_operations({"name": here})
        for path in self._lists(here):
            status, body = self.ask("GET", path)
            assert status == 200, f"{path}: {body!r}"
            json.loads(body)

    @staticmethod
    def _lists(here: str) -> Iterator[str]:
        for version in ("v1", "v2", "v2alpha1"):
            yield f"/{version}/projects/sim-project/locations/-/nodes"
            yield f"/{version}/{here}/operations"
        for collection in ("disks", "addresses", "operations"):
            yield f"/compute/v1/projects/sim-project/aggregated/{collection}"
        for collection in ("images", "snapshots", "operations"):
            yield f"/compute/v1/projects/sim-project/global/{collection}"
        yield "/storage/v1/b?project=sim-project"
        yield "/storage/v1/b/fuzz-bucket/o?versions=true&projection=full"
        yield "/_sim/state"
