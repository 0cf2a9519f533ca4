"""The simulated Compute Engine API: lists, operations that take time, batches and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest

from tests.sim.test_world import MemoryHosts
from tpuctl.sim.compute.rest import BATCH, ComputeApi
from tpuctl.sim.wire.messages import Request
from tpuctl.sim.world.clock import ManualClock
from tpuctl.sim.world.delays import Delays
from tpuctl.sim.world.world import World, WorldOptions

ZONE = "us-central2-b"
ROOT = "/compute/v1/projects/sim-project"
DISKS = f"/zones/{ZONE}/disks"
FIREWALLS = "/global/firewalls"
TCP = {"IPProtocol": "tcp", "ports": ["8080"]}
BASE = "https://www.googleapis.com/compute/v1/projects/sim-project"


class Lab:
    """An API with a clock that stands still."""

    def __init__(self, **delays: float) -> None:
        self.clock = ManualClock()
        options = WorldOptions(delays=Delays(**delays))
        self.hosts = MemoryHosts()
        self.world = World(self.hosts, options, clock=self.clock)
        self.api = ComputeApi(self.world)

    def call(self, verb: str, path: str, body: Any = None, **query: str) -> tuple[int, Any]:
        text = b"" if body is None else json.dumps(body).encode()
        asked = {key: [value] for key, value in query.items()}
        answer = self.api.handle(Request(verb, ROOT + path, asked, {}, text))
        return answer.status, json.loads(answer.body)

    def get(self, path: str, **query: str) -> Any:
        status, body = self.call("GET", path, **query)
        assert status == 200, body
        return body

    def names(self, path: str, **query: str) -> list[str]:
        return [item["name"] for item in self.get(path, **query).get("items", ())]

    def disk(self, name: str, **fields: Any) -> Any:
        status, body = self.call("POST", DISKS, {"name": name, "sizeGb": "10", **fields})
        assert status == 200, body
        return body


@pytest.fixture
def lab() -> Lab:
    return Lab(compute_operation=0.0)


def test_operations_take_time_and_are_listed() -> None:
    lab = Lab(compute_operation=10.0)
    begun = lab.disk("one")
    assert (begun["status"], begun["progress"], begun["operationType"]) == ("RUNNING", 0, "insert")
    assert lab.get(f"{DISKS}/one")["status"] == "CREATING"
    place = f"/zones/{ZONE}/operations"
    assert lab.names(place, filter="status=RUNNING") == [begun["name"]]
    lab.clock.advance(10)
    done = lab.get(f"{place}/{begun['name']}")
    assert (done["status"], done["progress"], "endTime" in done) == ("DONE", 100, True)
    assert lab.call("POST", f"{place}/{begun['name']}/wait")[1] == done
    made = lab.get(f"{DISKS}/one")
    assert (made["status"], made["creationTimestamp"][-6:] in ("-07:00", "-08:00")) == ("READY", True)
    assert "items" not in lab.get("/global/operations")
    assert lab.get("/aggregated/operations")["items"][f"zones/{ZONE}"]["operations"] == [done]
    lab.call("DELETE", f"{DISKS}/one")
    assert lab.get(f"{DISKS}/one")["status"] == "DELETING"
    lab.clock.advance(10)
    assert lab.call("GET", f"{DISKS}/one")[0] == 404


def test_every_kind_of_call_asks_for_its_permission(lab: Lab) -> None:
    lab.disk("one")
    asked = {
        "compute.disks.create": ("POST", DISKS, {"name": "two", "sizeGb": "10"}),
        "compute.disks.get": ("GET", f"{DISKS}/one", None),
        "compute.disks.list": ("GET", "/aggregated/disks", None),
        "compute.disks.resize": ("POST", f"{DISKS}/one/resize", {"sizeGb": "20"}),
        "compute.disks.delete": ("DELETE", f"{DISKS}/one", None),
    }
    for permission, (verb, path, body) in asked.items():
        lab.world.faults.add({"kind": "no-permission", "name": permission})
        status, answer = lab.call(verb, path, body)
        assert (status, permission in answer["error"]["message"]) == (403, True), permission
        lab.world.faults.clear()
        assert lab.call(verb, path, body)[0] == 200, permission


@pytest.mark.parametrize(
    ("asked", "body", "reason", "text"),
    [
        ("GET /zones?bogus=1", None, "invalid", "Cannot bind query parameter"),
        ("GET /zones/mars-1/disks", None, "invalid", "Invalid value for field 'zone': 'mars-1'. Unknown"),
        (f"POST {DISKS}", {"name": "a", "sizeGb": "x"}, "invalid", "'resource.size_gb' (TYPE_INT64), \"x\""),
        (f"POST {DISKS}", {"name": "a", "sizeGb": "1"}, "invalid", "'resource.sizeGb'"),
        (f"POST {DISKS}", {"name": "a", "bogus": 1}, "invalid", "Cannot find field."),
        (f"POST {DISKS}", {"name": "a", "labels": "x"}, "invalid", "Invalid value at 'resource.labels'"),
        (f"POST {DISKS}", {"name": "a", "sourceImage": "i"}, "invalid", "image resource cannot be found"),
        (f"POST {DISKS}?sourceImage=i", {"name": "a"}, "conditionNotMet", "does not implement"),
        ("POST /global/addresses", {"name": "a", "ipVersion": "IPV6"}, "conditionNotMet", "does not"),
        ("POST /global/networks", {"name": "a"}, "conditionNotMet", "does not implement"),
        (f"POST {FIREWALLS}", {"name": "a"}, "invalid", "'resource.allowed'"),
        (f"POST {FIREWALLS}", {"name": "a", "allowed": [{"x": 1}]}, "invalid", "Cannot find field."),
        (f"POST {FIREWALLS}", {"name": "a", "allowed": [TCP], "network": "n"}, "notFound", "networks/n"),
        (f"POST {FIREWALLS}", {"name": "default-allow-ssh", "allowed": [TCP]}, "alreadyExists", "exists"),
        (f"DELETE {FIREWALLS}/none", None, "notFound", "was not found"),
        ("GET /global/routers", None, "conditionNotMet", "does not implement"),
        ("GET /aggregated/images", None, "conditionNotMet", "does not implement"),
        (f"PATCH {DISKS}/a", {}, "conditionNotMet", "does not implement"),
        (f"POST /zones/{ZONE}/instances/vm/setTags", {}, "conditionNotMet", "does not implement"),
        ("POST /setCommonInstanceMetadata", {}, "conditionNotMet", "does not implement"),
        ("GET /../p/zones", None, "conditionNotMet", "does not implement"),
    ],
)
def test_refusals_have_a_reason(lab: Lab, asked: str, body: Any, reason: str, text: str) -> None:
    before = lab.get("/aggregated/disks")
    verb, url = asked.split(" ")
    path, _, query = url.partition("?")
    found, answer = lab.call(verb, path, body, **dict(parse_qsl(query)))
    assert found == answer["error"]["code"] == {"notFound": 404, "alreadyExists": 409}.get(reason, 400)
    [error] = answer["error"]["errors"]
    assert (error["reason"], error["domain"]) == (reason, "global")
    assert error["message"] == answer["error"]["message"]
    assert text in error["message"]
    assert lab.get("/aggregated/disks") == before


def test_a_firewall_rule_that_allows_something_is_made_listed_and_deleted(lab: Lab) -> None:
    asked = {"name": "open", "allowed": [TCP], "targetTags": ["tpu"], "network": "global/networks/default"}
    status, made = lab.call("POST", FIREWALLS, asked)
    assert (status, made["operationType"]) == (200, "insert")
    found = lab.get(f"{FIREWALLS}/open")
    expected = {
        **{"direction": "INGRESS", "priority": 1000, "sourceRanges": ["0.0.0.0/0"], "targetTags": ["tpu"]},
        "network": f"{BASE}/global/networks/default",
    }
    assert expected.items() <= found.items()
    assert "labelFingerprint" not in found
    assert {"open", "default-allow-ssh"} <= set(lab.names(FIREWALLS))
    assert lab.call("POST", FIREWALLS, asked)[0] == 409
    out = {"name": "out", "allowed": [TCP], "direction": "EGRESS"}
    assert lab.call("POST", FIREWALLS, out)[0] == 200
    assert lab.get(f"{FIREWALLS}/out")["destinationRanges"] == ["0.0.0.0/0"]
    assert lab.call("DELETE", f"{FIREWALLS}/open")[0] == 200
    assert lab.call("GET", f"{FIREWALLS}/open")[0] == 404


def test_firewall_rules_are_there_while_their_operation_runs() -> None:
    lab = Lab(compute_operation=10.0)
    lab.call("POST", FIREWALLS, {"name": "open", "allowed": [TCP]})
    assert "status" not in lab.get(f"{FIREWALLS}/open")


def test_usable_subnetworks_are_listed_with_their_regions(lab: Lab) -> None:
    found = lab.get("/aggregated/subnetworks/listUsable")["items"]
    here = f"{BASE}/regions/us-central2/subnetworks/default"
    [ours] = [each for each in found if each["subnetwork"] == here]
    assert ours["network"] == f"{BASE}/global/networks/default"
    assert "name" not in ours


def test_a_global_address_may_say_its_version(lab: Lab) -> None:
    assert lab.call("POST", "/global/addresses", {"name": "a", "ipVersion": "IPV4"})[0] == 200


def test_a_parameter_that_says_nothing_is_no_reason_to_refuse(lab: Lab) -> None:
    lab.disk("one")
    status, body = lab.call("POST", f"{DISKS}/one/createSnapshot", {"name": "s"}, guestFlush="False")
    assert (status, body["operationType"]) == (200, "createSnapshot")
    status, body = lab.call("POST", f"{DISKS}/one/createSnapshot", {"name": "t"}, guestFlush="True")
    assert (status, "does not implement" in body["error"]["message"]) == (400, True)


def batch(lab: Lab, *calls: tuple[str, str]) -> list[str]:
    """The status lines of a batch."""
    parts = [
        f"--b\r\nContent-Type: application/http\r\nContent-ID: <x+{number}>\r\n\r\n"
        f"{verb} {path} HTTP/1.1\r\nContent-Type: application/json\r\n\r\n"
        for number, (verb, path) in enumerate(calls)
    ]
    body = ("\r\n".join(parts) + "\r\n--b--\r\n").encode()
    headers = {"content-type": 'multipart/mixed; boundary="b"'}
    answer = lab.api.handle(Request("POST", BATCH, {}, headers, body))
    assert answer.status == 200
    lines = answer.body.decode().splitlines()
    assert [line for line in lines if line.startswith("Content-ID")] == [
        f"Content-ID: <response-x+{number}>" for number in range(len(calls))
    ]
    return [line for line in lines if line.startswith("HTTP/1.1")]


def test_a_batch_answers_each_call_for_itself(lab: Lab) -> None:
    lab.disk("one")
    lab.disk("two")
    query = urlencode({"filter": "name=one"})
    found = batch(
        lab,
        ("DELETE", f"{ROOT}{DISKS}/one?alt=json"),
        ("DELETE", f"{ROOT}{DISKS}/none?alt=json"),
        ("GET", f"{ROOT}{DISKS}?{query}"),
    )
    assert found == ["HTTP/1.1 200 OK", "HTTP/1.1 404 Not Found", "HTTP/1.1 200 OK"]
    assert lab.names(DISKS) == ["two"]


@pytest.mark.parametrize(
    "body", [b"", b"--b--", b"x" * 1000, b"--b\r\n\r\nGET http://[ HTTP/1.1\r\n\r\n\r\n--b--"]
)
def test_what_is_no_batch_is_refused(lab: Lab, body: bytes) -> None:
    answer = lab.api.handle(Request("POST", BATCH, {}, {"content-type": "multipart/mixed; boundary=b"}, body))
    assert answer.status == 400


def test_reads_change_nothing(lab: Lab) -> None:
    lab.disk("one")
    reads: list[Callable[[], Any]] = [
        lambda: lab.get("/zones"),
        lambda: lab.get(DISKS),
        lambda: lab.get(f"/zones/{ZONE}/operations"),
    ]
    first = [read() for read in reads]
    assert [read() for read in reads] == first
