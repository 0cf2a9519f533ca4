"""A server that answers as Google's were recorded and knows nothing of the simulator: for the story of day one.

It is a proxy for HTTPS that ends TLS for Google's names, so that tpuctl runs as it does on its first day: no
endpoint, no profile, a login file and nothing else. Every answer is one of `answers/` with names and states put
in. Hosts are SSH servers that run real commands. What nothing is recorded for is noted in `astray` and refused.
"""

from __future__ import annotations

import copy
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trustme

from tests.recorded.stories import exchange
from tests.support.sshd import LOGIN, SshFarm

PROJECT = "example-project"
NUMBER = "123456789012"
ZONE = r"projects/example-project/locations/(?P<zone>[a-z0-9-]+)"
NODE_STATES = {
    "WAITING_FOR_RESOURCES": "CREATING",
    "PROVISIONING": "CREATING",
    "ACTIVE": "READY",
    "SUSPENDED": "PREEMPTED",
}
Json = dict[str, Any]
Answer = tuple[int, Any]


def recorded(name: str) -> Any:
    """The body of a recorded answer, to be filled in."""
    return copy.deepcopy(exchange(name).body)


@dataclass
class Slice:
    """A queued resource with its node and the node's host, or (`direct`) a node without one. `state` is that of
    the queued resource, `looks` how often it was read."""

    zone: str
    name: str
    spec: Json
    uid: str
    state: str = "WAITING_FOR_RESOURCES"
    looks: int = 0
    farm: SshFarm | None = None
    address: str = ""
    host_key: str = ""
    deleting: bool = False
    direct: bool = False

    @property
    def node_id(self) -> str:
        return str(self.spec["nodeId"])


@dataclass
class Google:
    """The project as its APIs show it. `port` is where its proxy listens, `ssh_port` where its hosts do."""

    folder: Path
    ssh_port: int
    slices: dict[str, Slice] = field(default_factory=dict)
    operations: dict[str, Json] = field(default_factory=dict)
    astray: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    port: int = 0
    _hosts: int = 0

    # What the project does by itself.

    def preempt(self, name: str) -> None:
        """The host dies. A queued node goes and the service suspends its request; a direct one stays listed."""
        with self.lock:
            found = self.slices[name]
            farm, found.farm = found.farm, None
            found.state = "SUSPENDED"
        if farm is not None:
            farm.close()

    def close(self) -> None:
        for each in self.slices.values():
            if each.farm is not None:
                each.farm.close()

    def advance(self, found: Slice) -> None:
        """One state further with every look at it, as time would do it."""
        found.looks += 1
        if found.deleting:
            del self.slices[found.name]
            if found.farm is not None:
                found.farm.close()
        elif found.state == "WAITING_FOR_RESOURCES" and found.looks > 1:
            found.state = "PROVISIONING"
        elif found.state == "PROVISIONING" and found.looks > 2:
            self._boot(found)
            found.state = "ACTIVE"

    def _boot(self, found: Slice) -> None:
        keys = found.spec["node"]["metadata"]["ssh-keys"].splitlines()
        lines = [line.partition(":")[2] for line in keys if line.startswith(f"{LOGIN}:")]
        self._hosts += 1
        folder = self.folder / f"host-{self._hosts}"
        folder.mkdir()
        found.farm = SshFarm(folder, lines[0])
        found.farm.accepted |= {line.split()[1].encode() for line in lines}
        found.address = f"127.79.{self._hosts}.1"
        found.host_key = found.farm.add(0, found.address, self.ssh_port).host_key

    # How it shows itself.

    def show_node(self, found: Slice) -> Json:
        node: Json = recorded("tpu/node:get")
        asked = found.spec["node"]
        node |= {key: asked[key] for key in ("acceleratorType", "runtimeVersion", "labels", "metadata")}
        node |= {"name": f"projects/{PROJECT}/locations/{found.zone}/nodes/{found.node_id}", "id": found.uid}
        node["schedulingConfig"] = {"spot": True}
        if not found.direct:
            node["queuedResource"] = f"projects/{NUMBER}/locations/{found.zone}/queuedResources/{found.name}"
        node["networkEndpoints"][0] |= {"accessConfig": {"externalIp": found.address}}
        node["state"] = "DELETING" if found.deleting else NODE_STATES[found.state]
        if node["state"] != "READY":
            del node["health"]
        if not found.address:
            del node["networkEndpoints"]
        return node

    def show_queued(self, found: Slice) -> Json:
        queued: Json = recorded("tpu/queued_calls:list")["queuedResources"][0]
        asked = found.spec["node"]
        shown = queued["tpu"]["nodeSpec"][0]
        parent = f"projects/{NUMBER}/locations/{found.zone}"
        shown |= {"parent": parent, "nodeId": found.node_id}
        shown["node"] |= {**asked, "queuedResource": f"{parent}/queuedResources/{found.name}"}
        queued |= {"name": f"projects/{PROJECT}/locations/{found.zone}/queuedResources/{found.name}"}
        queued["state"] = {"state": "DELETING" if found.deleting else found.state}
        if found.state == "SUSPENDED":
            queued["state"]["stateInitiator"] = "SERVICE"
        return queued

    def new_uid(self) -> str:
        """The number of a node, another one for each incarnation."""
        return str(7654321098765432109 + len(self.operations))

    def begin(self, verb: str, target: str) -> Json:
        """An operation that is pending, and done when it is asked for."""
        operation: Json = recorded("tpu/node:create")
        location = target.rpartition("/")[0].rpartition("/")[0]
        operation["name"] = f"{location}/operations/operation-1711974896123-{len(self.operations):x}"
        operation["metadata"] |= {"target": target, "verb": verb}
        self.operations[operation["name"]] = operation
        return operation

    # Calls.

    def answer(self, method: str, target: str, sent: Json) -> Answer:
        url = urlsplit(target)
        self.asked.append(f"{method} {url.path}")
        for verb, pattern, handler in ROUTES:
            match = re.fullmatch(pattern, url.path)
            if match and verb == method:
                with self.lock:
                    query = {key: values[-1] for key, values in parse_qs(url.query).items()}
                    return handler(self, {**match.groupdict(), **query}, sent)
        self.astray.append(f"{method} {target}")
        return absent(url.path.removeprefix("/v2/"))


def absent(name: str) -> Answer:
    """The recorded refusal of what is not there."""
    body = recorded("tpu/node_without_network:absent")
    body["error"]["message"] = f"Resource '{name}' was not found"
    return 404, body


def token(google: Google, args: Mapping[str, str], sent: Json) -> Answer:
    """https://developers.google.com/identity/protocols/oauth2/web-server#offline"""
    return 200, {"access_token": "ya29.recorded", "expires_in": 3599, "token_type": "Bearer"}


def list_nodes(google: Google, args: Mapping[str, str], sent: Json) -> Answer:
    found = [each for each in _there(google, args["zone"]) if _has_node(each)]
    return _listed("nodes", [google.show_node(each) for each in found])


def _has_node(found: Slice) -> bool:
    return found.direct or found.state in ("PROVISIONING", "ACTIVE")


def _there(google: Google, zone: str) -> list[Slice]:
    return [each for each in google.slices.values() if zone in ("-", each.zone)]


def _listed(key: str, items: list[Json]) -> Answer:
    """An empty list is left out, as everything empty is."""
    return 200, {key: items} if items else {}


def get_node(google: Google, args: Mapping[str, str], sent: Json) -> Answer:
    for each in _there(google, args["zone"]):
        if each.node_id == args["id"] and _has_node(each):
            if each.direct:
                google.advance(each)
            if each.name in google.slices:
                return 200, google.show_node(each)
    return absent(f"projects/{PROJECT}/locations/{args['zone']}/nodes/{args['id']}")


def create_node(google: Google, args: Mapping[str, str], sent: Json) -> Answer:
    name = args["nodeId"]
    google.slices[name] = Slice(
        args["zone"], name, {"nodeId": name, "node": sent}, google.new_uid(), direct=True
    )
    return 200, google.begin("create", f"projects/{PROJECT}/locations/{args['zone']}/nodes/{name}")


def delete_node(google: Google, args: Mapping[str, str], sent: Json) -> Answer:
    return _delete(google, f"projects/{PROJECT}/locations/{args['zone']}/nodes/{args['id']}", args["id"])


def _delete(google: Google, name: str, id: str) -> Answer:
    if id not in google.slices:
        return absent(name)
    google.slices[id].deleting = True
    return 200, google.begin("delete", name)


def list_queued(google: Google, args: Mapping[str, str], sent: Json) -> Answer:
    found = [each for each in _there(google, args["zone"]) if not each.direct]
    return _listed("queuedResources", [google.show_queued(each) for each in found])


def get_queued(google: Google, args: Mapping[str, str], sent: Json) -> Answer:
    found = google.slices.get(args["id"])
    if found is not None:
        google.advance(found)
    if found is None or args["id"] not in google.slices:
        return absent(f"projects/{PROJECT}/locations/{args['zone']}/queuedResources/{args['id']}")
    return 200, google.show_queued(found)


def create_queued(google: Google, args: Mapping[str, str], sent: Json) -> Answer:
    name, spec = args["queuedResourceId"], sent["tpu"]["nodeSpec"][0]
    google.slices[name] = Slice(args["zone"], name, spec, google.new_uid())
    return 200, google.begin("create", f"projects/{PROJECT}/locations/{args['zone']}/queuedResources/{name}")


def delete_queued(google: Google, args: Mapping[str, str], sent: Json) -> Answer:
    return _delete(
        google, f"projects/{PROJECT}/locations/{args['zone']}/queuedResources/{args['id']}", args["id"]
    )


def get_operation(google: Google, args: Mapping[str, str], sent: Json) -> Answer:
    name = f"projects/{PROJECT}/locations/{args['zone']}/operations/{args['id']}"
    if name not in google.operations:
        return absent(name)
    done = recorded("tpu/node:deleted")
    done["metadata"] |= google.operations[name]["metadata"]
    return 200, {**done, "name": name}


def guest_attributes(google: Google, args: Mapping[str, str], sent: Json) -> Answer:
    for each in _there(google, args["zone"]):
        if each.node_id == args["id"] and each.farm is not None:
            body = recorded("tpu/guest_attributes:all")
            wanted = sent.get("queryPath", "")
            for item in body["guestAttributes"][0]["queryValue"]["items"]:
                if item["key"] == "ssh-ed25519":
                    item["value"] = each.host_key.split()[1]
            return (200, body) if not wanted else (200, {"guestAttributes": [{"queryPath": wanted}]})
    return absent(args["id"])


def project(google: Google, args: Mapping[str, str], sent: Json) -> Answer:
    return 200, {**recorded("compute/project:get"), "name": PROJECT, "commonInstanceMetadata": {}}


def quotas(google: Google, args: Mapping[str, str], sent: Json) -> Answer:
    del google, sent
    return 200, recorded(f"cloud_quotas/quota_infos:{'list' if args['service'] == 'tpu' else 'machines'}")


def region(google: Google, args: Mapping[str, str], sent: Json) -> Answer:
    return 200, {**recorded("compute/region:get"), "name": args["id"]}


ROUTES: tuple[tuple[str, str, Callable[[Google, Mapping[str, str], Json], Answer]], ...] = (
    ("POST", "/token", token),
    ("GET", f"/v2/{ZONE}/nodes", list_nodes),
    ("GET", f"/v2/{ZONE}/nodes/(?P<id>[^/:]+)", get_node),
    ("POST", f"/v2/{ZONE}/nodes/(?P<id>[^/:]+):getGuestAttributes", guest_attributes),
    ("GET", f"/v2/{ZONE}/queuedResources", list_queued),
    ("POST", f"/v2/{ZONE}/queuedResources", create_queued),
    ("GET", f"/v2/{ZONE}/queuedResources/(?P<id>[^/:]+)", get_queued),
    ("DELETE", f"/v2/{ZONE}/queuedResources/(?P<id>[^/:]+)", delete_queued),
    ("GET", f"/v2/{ZONE}/operations/(?P<id>[^/:]+)", get_operation),
    ("POST", f"/v2/{ZONE}/nodes", create_node),
    ("DELETE", f"/v2/{ZONE}/nodes/(?P<id>[^/:]+)", delete_node),
    ("GET", f"/compute/v1/projects/{PROJECT}", project),
    ("GET", f"/compute/v1/projects/{PROJECT}/regions/(?P<id>[a-z0-9-]+)", region),
    (
        "GET",
        f"/v1/projects/{PROJECT}/locations/global/services/(?P<service>[a-z]+).googleapis.com/quotaInfos",
        quotas,
    ),
)


@contextmanager
def answering(folder: Path) -> Iterator[tuple[Google, Mapping[str, str]]]:
    """The server, and the variables with which Google's libraries find it at Google's addresses."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("*.googleapis.com").configure_cert(context)
    google = Google(folder, free_port())

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

        def do_CONNECT(self) -> None:
            """From here on this connection is one with the server that the client asked for."""
            self.send_response_only(200)
            self.end_headers()
            self.connection = context.wrap_socket(self.connection, server_side=True)
            self.rfile = self.connection.makefile("rb")
            self.wfile = self.connection.makefile("wb", buffering=0)
            self.close_connection = False

        def serve(self) -> None:
            sent = self.rfile.read(int(self.headers.get("content-length") or 0))
            typed = "json" in self.headers.get("content-type", "")
            status, body = google.answer(self.command, self.path, json.loads(sent) if sent and typed else {})
            content = json.dumps(body).encode()
            self.send_response_only(status)
            for key, value in exchange("tpu/node:get").headers.items():
                self.send_header(key, value)
            self.send_header("Date", self.date_time_string())
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = serve

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    google.port = int(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    login = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    (folder / "login.json").write_text(json.dumps(login))
    variables = {
        "HTTPS_PROXY": f"http://127.0.0.1:{google.port}",
        "REQUESTS_CA_BUNDLE": str(folder / "ca.pem"),
        "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "login.json"),
        "TPUCTL_PROJECT": PROJECT,
        "TPUCTL_SSH_PORT": str(google.ssh_port),
        "TPUCTL_LOGIN_USER": LOGIN,
    }
    try:
        yield google, variables
    finally:
        google.close()
        server.shutdown()
        thread.join()
        server.server_close()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
