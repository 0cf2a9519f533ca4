"""Every known state and error of the real cloud is reached by the command that the documents name for it."""

from __future__ import annotations

import asyncio
import email.utils
import os
import re
import shlex
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh
import grpc
import pytest
import requests
from typer.testing import CliRunner

from tests.docs.generate import ROOT
from tests.sim.test_tpu import PARENT, VERSION
from tpuctl.cli.app import app
from tpuctl.config.settings import SIM_PROFILE
from tpuctl.sim.api.oauth import PATHS as TOKEN_PATHS
from tpuctl.sim.compute.catalog import KINDS, LIKE, Scope
from tpuctl.sim.hosts.backend import HostDisk
from tpuctl.sim.server.info import SimInfo
from tpuctl.sim.server.options import SimOptions
from tpuctl.sim.server.processes import start_time
from tpuctl.sim.server.simulator import Simulator, new_token
from tpuctl.sim.server.state_dir import save_info
from tpuctl.sim.wire.calls import tpu_calls
from tpuctl.sim.wire.payload import load_types
from tpuctl.sim.world.clock import ManualClock
from tpuctl.sim.world.delays import Delays
from tpuctl.sim.world.faults import fault_methods, load_presets
from tpuctl.sim.world.steering import HEALTHS, NODE_STATES, QUEUED_STATES, SYMPTOMS
from tpuctl.telemetry.libtpu import read_core_states, read_metrics
from tpuctl.telemetry.messages import DUTY

ZONE = "us-central2-b"
NODES, QUEUE = f"/v2/{PARENT}/nodes", f"/v2/{PARENT}/queuedResources"
COMPUTE = "/compute/v1/projects/sim-project"
PAGE = ROOT / "docs" / "tasks" / "rehearse-with-the-simulator.md"
SECTION = "| what the real cloud does | command |"


def documented() -> dict[str, list[str]]:
    """What the table of the page promises: what happens → its commands."""
    rows = PAGE.read_text(encoding="utf-8").partition(SECTION)[2].partition("\n\n")[0].splitlines()[2:]
    cells = [row.strip("| ").split(" | ") for row in rows]
    return {what: re.findall(r"`(tpuctl [^`]+)`", commands) for what, commands in cells}


@dataclass
class Lab:
    """A simulator with a clock that stands still, and the command line that steers it."""

    simulator: Simulator
    clock: ManualClock

    def run(self, command: str, *more: str) -> str:
        words = [*shlex.split(command)[1:], *more]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, f"{words}: {done.output}{done.stderr}"
        return done.output

    def call(self, verb: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.simulator.token}"}
        url = f"{self.simulator.endpoint}{path}"
        answer = requests.request(verb, url, json=body, headers=headers, timeout=30)
        return answer.status_code, answer.json()

    def get(self, path: str) -> Any:
        status, body = self.call("GET", path)
        assert status == 200, body
        return body

    def later(self, seconds: float = 2000.0) -> None:
        self.clock.advance(seconds)

    def node(self, name: str = "big-1", type: str = "v4-16", **fields: Any) -> tuple[int, Any]:
        body = {"acceleratorType": type, "runtimeVersion": VERSION, **fields}
        return self.call("POST", f"{NODES}?nodeId={name}", body)

    def ready(self, name: str = "big-1", type: str = "v4-16", **fields: Any) -> None:
        status, body = self.node(name, type, **fields)
        assert status == 200, body
        self.later()
        assert self.shown(name)["state"] == "READY"

    def shown(self, name: str = "big-1") -> Any:
        return self.get(f"{NODES}/{name}")

    def queued(self, name: str = "waiting") -> Any:
        spec = {"nodeId": name, "node": {"acceleratorType": "v4-8", "runtimeVersion": VERSION}}
        body = {"tpu": {"nodeSpec": [spec]}, "spot": {}}
        status, operation = self.call("POST", f"{QUEUE}?queuedResourceId={name}", body)
        assert status == 200, operation
        return operation

    def state(self, name: str = "waiting") -> str:
        return str(self.get(f"{QUEUE}/{name}")["state"]["state"])

    def outcome(self, operation: Any) -> Any:
        return self.get(f"/v2/{operation['name']}")

    def error_of(self, operation: Any) -> Any:
        self.later()
        return self.outcome(operation)["error"]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("TPUCTL_STATE_DIR", str(tmp_path))
    state_dir, root = tmp_path / SIM_PROFILE, tmp_path / "world"
    state_dir.mkdir()
    root.mkdir()
    clock = ManualClock(time.time())
    simulator = Simulator(root, SimOptions(), world_id=f"r{os.getpid()}", token=new_token(), clock=clock)
    token_file = state_dir / "token"
    token_file.write_text(simulator.token)
    facts = {
        "pid": os.getpid(),
        "pid_started": start_time(os.getpid()),
        "guardian_pid": os.getpid(),
        "world_id": simulator.world_id,
        "http": simulator.endpoint,
        "grpc": simulator.grpc_endpoint,
        "token_file": str(token_file),
        "ssh_port": simulator.ssh_port,
        "hosts": "process",
        "project": "sim-project",
        "started": 0.0,
        "options": SimOptions().to_json(),
    }
    names = SimInfo.__dataclass_fields__
    save_info(state_dir, SimInfo(**{name: facts.get(name, "") for name in names}))
    try:
        yield Lab(simulator, clock)
    finally:
        simulator.close()


def refused(answer: tuple[int, Any], status: int, name: str, text: str = "", reason: str = "") -> None:
    found, body = answer
    assert (found, body["error"]["status"]) == (status, name), body
    assert text in body["error"]["message"]
    if reason:
        assert reason in [each.get("reason") for each in body["error"]["details"]]


DENIED = "PERMISSION_DENIED"
DELAYS = Delays()


def stockout(lab: Lab, run: Callable[[], None]) -> None:
    run()
    _, operation = lab.node()
    assert (lab.error_of(operation)["code"], lab.call("GET", f"{NODES}/big-1")[0]) == (8, 404)


def stockout_now(lab: Lab, run: Callable[[], None]) -> None:
    run()
    refused(lab.node(), 429, "RESOURCE_EXHAUSTED", "There is no more capacity in the zone")


def capacity(lab: Lab, run: Callable[[], None]) -> None:
    lab.run(f"tpuctl sim capacity {ZONE}=0")
    lab.queued()
    _, operation = lab.node()
    assert lab.error_of(operation)["code"] == 8
    assert lab.state() == "WAITING_FOR_RESOURCES"
    run()
    lab.later()
    assert lab.state() == "ACTIVE"


def reservation(lab: Lab, run: Callable[[], None]) -> None:
    reserved = {"schedulingConfig": {"reserved": True}}
    _, operation = lab.node(**reserved)
    assert lab.error_of(operation)["code"] == 9
    run()
    lab.ready(**reserved)
    assert "ours" in lab.run("tpuctl sim reservation")
    [found] = lab.get(f"/v2alpha1/{PARENT}/reservations")["reservations"]
    assert found["name"].endswith("/reservations/ours")


def reserved_shortage(lab: Lab, run: Callable[[], None]) -> None:
    run()
    _, operation = lab.node()
    error = lab.error_of(operation)
    assert (error["code"], "Insufficient reserved capacity" in error["message"]) == (9, True)


def quota(text: str, **fields: Any) -> Callable[[Lab, Callable[[], None]], None]:
    def check(lab: Lab, run: Callable[[], None]) -> None:
        run()
        refused(lab.node(**fields), 429, "RESOURCE_EXHAUSTED", text)

    return check


def serving_quota(lab: Lab, run: Callable[[], None]) -> None:
    run()
    there = NODES.replace(ZONE, "us-west4-a")
    told = {
        kind: lab.call(
            "POST",
            f"{there}?nodeId={kind}",
            {"acceleratorType": kind, "runtimeVersion": "v2-alpha-tpuv5-lite"},
        )
        for kind in ("v5litepod-8", "v5litepod-4", "v5litepod-16")
    }
    refused(told["v5litepod-8"], 429, "RESOURCE_EXHAUSTED", "TPUV5sLitepodServing")
    assert (told["v5litepod-4"][0], told["v5litepod-16"][0]) == (200, 200)


def rate_limit(lab: Lab, run: Callable[[], None]) -> None:
    run()
    refused(lab.node(), 429, "RESOURCE_EXHAUSTED", "per minute", reason="RATE_LIMIT_EXCEEDED")
    assert lab.node()[0] == 200


def queued_failure(code: int, text: str) -> Callable[[Lab, Callable[[], None]], None]:
    def check(lab: Lab, run: Callable[[], None]) -> None:
        run()
        lab.queued()
        seen = []
        for _ in range(60):
            lab.later(10)
            seen.append(lab.state())
        assert list(dict.fromkeys(seen))[-3:] == ["PROVISIONING", "SUSPENDING", "FAILED"]
        error = lab.get(f"{QUEUE}/waiting")["state"]["failedData"]["error"]
        assert (error["code"], text in error["message"]) == (code, True)

    return check


def flapping(lab: Lab, run: Callable[[], None]) -> None:
    run()
    lab.queued()
    seen = []
    for _ in range(100):
        lab.later(5)
        if not seen or seen[-1] != lab.state():
            seen.append(lab.state())
    assert seen.count("PROVISIONING") == 4
    assert seen[-1] == "ACTIVE"


def failing_queued_create(lab: Lab, run: Callable[[], None]) -> None:
    run()
    assert lab.error_of(lab.queued())["code"] == 13
    assert lab.call("GET", f"{QUEUE}/waiting")[0] == 404


def failing(verb: str) -> Callable[[Lab, Callable[[], None]], None]:
    def check(lab: Lab, run: Callable[[], None]) -> None:
        lab.ready(type="v4-8")
        if verb == "start":
            assert lab.call("POST", f"{NODES}/big-1:stop", {})[0] == 200
            lab.later()
        before = lab.shown()
        run()
        ask = {
            "stop": ("POST", f"{NODES}/big-1:stop", {}),
            "start": ("POST", f"{NODES}/big-1:start", {}),
            "patch": ("PATCH", f"{NODES}/big-1?updateMask=description", {"description": "x"}),
            "delete": ("DELETE", f"{NODES}/big-1", None),
        }
        status, operation = lab.call(*ask[verb])
        assert status == 200
        assert lab.error_of(operation)["code"] == 13
        assert lab.shown() == before

    return check


def stuck(lab: Lab, run: Callable[[], None]) -> None:
    lab.ready()
    run()
    assert lab.call("DELETE", f"{NODES}/big-1")[0] == 200
    lab.later(3000)
    assert lab.shown()["state"] == "DELETING"
    lab.later(1000)
    assert lab.call("GET", f"{NODES}/big-1")[0] == 404


def late_operation(lab: Lab, run: Callable[[], None]) -> None:
    run()
    _, operation = lab.node()
    lab.later(800)
    assert (lab.shown()["state"], lab.outcome(operation).get("done", False)) == ("READY", False)
    lab.later(300)
    assert lab.outcome(operation)["done"]


def endless_operation(lab: Lab, run: Callable[[], None]) -> None:
    run()
    _, operation = lab.node()
    lab.later(80_000)
    assert (lab.shown()["state"], lab.outcome(operation).get("done", False)) == ("READY", False)


def lost_response(lab: Lab, run: Callable[[], None]) -> None:
    run()
    with pytest.raises(requests.ConnectionError):
        lab.node()
    assert lab.shown()["state"] == "CREATING"


def late_create(lab: Lab, run: Callable[[], None]) -> None:
    run()
    assert lab.node()[0] == 200
    assert lab.call("GET", f"{NODES}/big-1")[0] == 404
    lab.later(130)
    assert lab.shown()["state"] == "CREATING"


def conflict(lab: Lab, run: Callable[[], None]) -> None:
    lab.ready()
    run()
    change = ("PATCH", f"{NODES}/big-1?updateMask=description", {"description": "x"})
    refused(lab.call(*change), 409, "ABORTED", "unable to queue the operation")


def blip(lab: Lab, run: Callable[[], None]) -> None:
    run()
    refused(lab.call("GET", NODES), 503, "UNAVAILABLE")
    assert lab.call("GET", NODES)[0] == 200


def unreachable(lab: Lab, run: Callable[[], None]) -> None:
    lab.ready()
    run()
    listed = lab.get("/v2/projects/sim-project/locations/-/nodes")
    assert (listed.get("nodes", []), listed["unreachable"]) == ([], [PARENT])


def access(status: int, name: str, reason: str) -> Callable[[Lab, Callable[[], None]], None]:
    def check(lab: Lab, run: Callable[[], None]) -> None:
        run()
        refused(lab.node(), status, name, reason=reason)
        lab.run("tpuctl sim fault --clear")
        assert lab.node()[0] == 200

    return check


def expired(lab: Lab, run: Callable[[], None]) -> None:
    """The token is refused, and it cannot be renewed."""
    access(401, "UNAUTHENTICATED", "ACCESS_TOKEN_EXPIRED")(lab, run)
    run()
    form = {"grant_type": "refresh_token", "refresh_token": lab.simulator.token}
    answer = requests.post(f"{lab.simulator.endpoint}{TOKEN_PATHS[0]}", data=form, timeout=30)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant")


def clock_off(lab: Lab, run: Callable[[], None]) -> None:
    run()
    headers = {"Authorization": f"Bearer {lab.simulator.token}"}
    date = requests.get(f"{lab.simulator.endpoint}{NODES}", headers=headers, timeout=30).headers["Date"]
    assert email.utils.parsedate_to_datetime(date).timestamp() - time.time() == pytest.approx(600, abs=5)


def preemption(lab: Lab, run: Callable[[], None]) -> None:
    lab.ready()
    run()
    lab.later()
    assert lab.shown()["state"] == "PREEMPTED"
    change = ("PATCH", f"{NODES}/big-1?updateMask=description", {"description": "x"})
    refused(lab.call(*change), 400, "INVALID_ARGUMENT", "update is not supported while in state PREEMPTED")


def answers(lab: Lab) -> list[bool]:
    """Whether each host of big-1 takes connections."""
    found = []
    for endpoint in lab.shown()["networkEndpoints"]:
        try:
            socket.create_connection((endpoint["ipAddress"], lab.simulator.ssh_port), timeout=10).close()
            found.append(True)
        except OSError:
            found.append(False)
    return found


def one_worker(lab: Lab, run: Callable[[], None]) -> None:
    lab.ready(networkConfig={"enableExternalIps": True})
    run()
    lab.later()
    assert lab.shown()["state"] == "READY"
    assert answers(lab) == [True, False]


def load(lab: Lab, run: Callable[[], None]) -> None:
    lab.ready()
    run()
    found = []
    for endpoint in lab.shown()["networkEndpoints"]:
        with grpc.insecure_channel(f"{endpoint['ipAddress']}:8431") as channel:
            duty = {value for _, value in read_metrics(channel, 30.0, [DUTY])[DUTY]}
            launch = {each.launch_id for each in read_core_states(channel, 30.0, worker=0, port=8431)}
        found.append((duty, launch))
    assert found == [({90.0}, {1000}), ({3.0}, {990})]


def reboot(lab: Lab, run: Callable[[], None]) -> None:
    lab.ready()
    run()
    assert (lab.shown()["state"], answers(lab)) == ("READY", [False, False])
    lab.later()
    assert answers(lab) == [True, True]


def any_state(lab: Lab, run: Callable[[], None]) -> None:
    lab.ready()
    run()
    assert lab.shown()["state"] == "REPAIRING"
    for state in NODE_STATES:
        lab.run(f"tpuctl sim set big-1 state={state}")
        assert lab.shown()["state"] == state
    assert {"RESTARTING", "REIMAGING", "TERMINATED", "HIDING", "HIDDEN", "UNHIDING", "UNKNOWN"} <= {
        *NODE_STATES
    }


def any_health(lab: Lab, run: Callable[[], None]) -> None:
    lab.ready()
    run()
    found = lab.shown()
    assert (found["health"], found["healthDescription"]) == ("UNHEALTHY_TENSORFLOW", "no chips")
    for health in HEALTHS:
        lab.run(f"tpuctl sim set big-1 health={health}")
        assert lab.shown()["health"] == health
    assert "TIMEOUT" in HEALTHS


def symptoms(lab: Lab, run: Callable[[], None]) -> None:
    lab.ready()
    run()
    [found] = lab.shown()["symptoms"]
    assert (found["symptomType"], found["workerId"]) == ("OUT_OF_MEMORY", "1")
    for kind in SYMPTOMS:
        lab.run(f"tpuctl sim set big-1 symptom={kind}")
    assert [each["symptomType"] for each in lab.shown()["symptoms"]] == ["OUT_OF_MEMORY", *SYMPTOMS]


def maintenance(lab: Lab, run: Callable[[], None]) -> None:
    lab.ready()
    run()
    announced = lab.shown()["upcomingMaintenance"]
    assert (announced["type"], announced["maintenanceStatus"]) == ("SCHEDULED", "PENDING")
    assert lab.call("POST", f"/v2alpha1/{PARENT}/nodes/big-1:performMaintenance", {})[0] == 200
    assert lab.shown()["health"] == "UNHEALTHY_MAINTENANCE"
    lab.later()
    assert lab.shown()["health"] == "HEALTHY"


def any_queued_state(lab: Lab, run: Callable[[], None]) -> None:
    lab.queued()
    run()
    assert lab.state() == "SUSPENDING"
    for state in QUEUED_STATES:
        lab.run(f"tpuctl sim set waiting state={state}")
        assert lab.state() == state


def pace(lab: Lab, run: Callable[[], None]) -> None:
    run()
    assert lab.node()[0] == 200
    lab.later(299)
    assert lab.shown()["state"] == "CREATING"
    lab.later(2)
    assert lab.shown()["state"] == "READY"


def host_keys(lab: Lab) -> tuple[int, Any]:
    return lab.call("POST", f"{NODES}/big-1:getGuestAttributes", {"workerIds": ["0"]})


def late_attributes(lab: Lab, run: Callable[[], None]) -> None:
    lab.ready()
    run()
    items = [host_keys(lab)[1]["guestAttributes"][0]["queryValue"].get("items", []) for _ in range(6)]
    assert ([bool(each) for each in items]) == [False] * 5 + [True]


def refused_attributes(lab: Lab, run: Callable[[], None]) -> None:
    lab.ready()
    run()
    refused(host_keys(lab), 403, "PERMISSION_DENIED")


def absent_attributes(lab: Lab, run: Callable[[], None]) -> None:
    lab.ready()
    run()
    refused(host_keys(lab), 404, "NOT_FOUND", "guest attribute value is not found")


KEY = asyncssh.generate_private_key("ssh-ed25519")


NO_ANSWER = 52
"""curl's word for a connection that was closed before an answer came."""


def log_in(lab: Lab, name: str = "big-1") -> bool:
    """Whether the first host takes the key of the node's metadata."""
    return on_host(lab, "true", name) is not None


def on_host(lab: Lab, command: str, name: str = "big-1") -> tuple[int | None, str] | None:
    """Exit status and output of a command on the first host; None where it does not take the key."""
    address = lab.shown(name)["networkEndpoints"][0]["ipAddress"]
    how: Any = {"known_hosts": None, "config": None, "agent_path": None, "login_timeout": 30}

    async def attempt() -> tuple[int | None, str] | None:
        try:
            port = lab.simulator.ssh_port
            async with asyncssh.connect(address, port, username="ada", client_keys=[KEY], **how) as line:
                done = await line.run(command)
                return done.exit_status, str(done.stdout)
        except asyncssh.PermissionDenied:
            return None

    return asyncio.run(attempt())


def ssh_keys() -> dict[str, Any]:
    return {"metadata": {"ssh-keys": f"ada:{KEY.export_public_key().decode().strip()}"}}


def late_keys(lab: Lab, run: Callable[[], None]) -> None:
    run()
    lab.node(**ssh_keys())
    lab.later(DELAYS.node_create + DELAYS.host_accounts + 1)
    assert (lab.shown()["state"], log_in(lab)) == ("READY", False)
    lab.later(20)
    assert log_in(lab)


def login_ban(lab: Lab, run: Callable[[], None]) -> None:
    run()
    lab.node(**ssh_keys())
    lab.later(DELAYS.node_create + 1)
    where = lab.shown()["networkEndpoints"][0]["ipAddress"], lab.simulator.ssh_port
    for _ in range(4):
        socket.create_connection(where, 5).close()
        assert not log_in(lab)
    lab.later()
    until_deaf(where, deaf=True)
    lab.run("tpuctl sim fault --clear")
    until_deaf(where, deaf=False)
    assert log_in(lab)


def until_deaf(where: tuple[str, int], *, deaf: bool) -> None:
    """A refusal counts when its connection is over, and a ban ends soon after its fault."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            socket.create_connection(where, 0.5).close()
        except TimeoutError:
            if deaf:
                return
        else:
            if not deaf:
                return
    raise AssertionError(f"the host is {'not ' * deaf}deaf")


def os_login(lab: Lab, run: Callable[[], None]) -> None:
    run()
    lab.ready(**ssh_keys())
    assert not log_in(lab)
    lab.run("tpuctl sim fault --clear")
    lab.ready("other", **ssh_keys())
    assert log_in(lab, "other")


def no_network(lab: Lab, run: Callable[[], None]) -> None:
    run()
    refused(lab.node(), 400, "INVALID_ARGUMENT", "global/networks/default' was not found")


def connect(lab: Lab, target: str) -> str:
    """What the proxy that hosts have answers to CONNECT."""
    with socket.create_connection(("127.0.0.1", lab.simulator.https.host_port), timeout=10) as line:
        line.sendall(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
        return line.recv(4096).decode().partition("\r\n")[0]


def no_internet(lab: Lab, run: Callable[[], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        target = f"127.0.0.1:{elsewhere.getsockname()[1]}"
        assert "200" in connect(lab, target)
        run()
        assert "403" in connect(lab, target)
        assert "200" in connect(lab, "tpu.googleapis.com:443")


def no_actas(lab: Lab, run: Callable[[], None]) -> None:
    run()
    refused(lab.node(), 403, DENIED, "iam.serviceAccounts.actAs")


BUCKET = "/storage/v1/b/sim-bucket"


def storage_refuses(status: int) -> Callable[[Lab, Callable[[], None]], None]:
    def check(lab: Lab, run: Callable[[], None]) -> None:
        run()
        assert [lab.call("GET", BUCKET)[0] for _ in range(2)] == [status, 200]

    return check


def storage_lost_response(lab: Lab, run: Callable[[], None]) -> None:
    run()
    with pytest.raises(requests.ConnectionError):
        lab.call("POST", f"/upload{BUCKET}/o?uploadType=media&name=a", {})
    assert lab.get(f"{BUCKET}/o/a")["name"] == "a"


def storage_slow_reads(lab: Lab, run: Callable[[], None]) -> None:
    paused: list[float] = []
    lab.clock.pause = paused.append  # type: ignore[method-assign]  # what a real clock sleeps
    lab.get(BUCKET)
    run()
    lab.get(BUCKET)
    lab.call("POST", f"/upload{BUCKET}/o?uploadType=media&name=a", {})
    assert paused == [0.5]


def storage_hangs(lab: Lab, run: Callable[[], None]) -> None:
    run()
    headers = {"Authorization": f"Bearer {lab.simulator.token}"}
    with pytest.raises(requests.ReadTimeout):
        requests.get(f"{lab.simulator.endpoint}{BUCKET}", headers=headers, timeout=0.5)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(lab.call, "GET", BUCKET)
        assert not wait([waiting], timeout=0.5).done
        lab.run("tpuctl sim fault --clear")
        assert isinstance(waiting.exception(timeout=30), requests.ConnectionError)
    assert lab.call("GET", BUCKET)[0] == 200


def bucket_deleted(lab: Lab, run: Callable[[], None]) -> None:
    assert lab.call("POST", "/storage/v1/b?project=sim-project", {"name": "other"})[0] == 200
    run()
    status, body = lab.call("GET", f"{BUCKET}/o/a")
    assert (status, body["error"]["message"]) == (404, "The specified bucket does not exist.")
    assert lab.call("POST", f"/upload{BUCKET}/o?uploadType=media&name=a", {})[0] == 404
    assert lab.call("GET", "/storage/v1/b/other")[0] == 200


def no_metadata(lab: Lab, run: Callable[[], None]) -> None:
    lab.ready(**ssh_keys())
    ask = "curl -s -H 'Metadata-Flavor: Google' http://$GCE_METADATA_HOST/computeMetadata/v1/instance/id"
    first = on_host(lab, ask)
    assert first is not None
    assert (first[0], first[1].isdecimal()) == (0, True)
    run()
    assert on_host(lab, ask) == (NO_ANSWER, "")
    lab.run("tpuctl sim fault --clear")
    assert on_host(lab, ask) == first


def compute_waits(lab: Lab, run: Callable[[], None]) -> None:
    run()
    _, operation = lab.call("POST", f"{COMPUTE}/zones/{ZONE}/disks", {"name": "d"})
    seen = [operation["status"]]
    for seconds in (61, 5):
        lab.later(seconds)
        seen.append(lab.get(f"{COMPUTE}/zones/{ZONE}/operations/{operation['name']}")["status"])
    assert seen == ["PENDING", "RUNNING", "DONE"]


def compute_fails(lab: Lab, run: Callable[[], None]) -> None:
    run()
    _, operation = lab.call("POST", f"{COMPUTE}/zones/{ZONE}/disks", {"name": "d"})
    lab.later()
    ended = lab.get(f"{COMPUTE}/zones/{ZONE}/operations/{operation['name']}")
    assert ended["error"]["errors"][0]["code"] == "QUOTA_EXCEEDED"


def attach_fails(text: str) -> Callable[[Lab, Callable[[], None]], None]:
    def check(lab: Lab, run: Callable[[], None]) -> None:
        lab.ready()
        run()
        body = {"name": f"{PARENT}/nodes/big-1", "dataDisks": []}
        status, operation = lab.call("PATCH", f"{NODES}/big-1?updateMask=dataDisks", body)
        assert status == 200
        assert text in lab.error_of(operation)["message"]

    return check


def disk_operation_fails(path: str, body: Any, code: str) -> Callable[[Lab, Callable[[], None]], None]:
    def check(lab: Lab, run: Callable[[], None]) -> None:
        disks = f"{COMPUTE}/zones/{ZONE}/disks"
        assert lab.call("POST", disks, {"name": "data"})[0] == 200
        lab.later()
        run()
        status, operation = lab.call("POST", f"{disks}{path}", body)
        assert status == 200
        lab.later()
        ended = lab.get(f"{COMPUTE}/zones/{ZONE}/operations/{operation['name']}")
        assert ended["error"]["errors"][0]["code"] == code

    return check


IMAGES = "projects/ubuntu-os-accelerator-images/global/images/family"


INSTANCES = f"{COMPUTE}/zones/us-east5-a"


def make_instance(lab: Lab, model: str) -> dict[str, Any]:
    """The operation of making one with chips of v6e, when it has ended."""
    image = f"{IMAGES}/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
    boot = {"sourceImage": image, "diskType": "hyperdisk-balanced"}
    body = {
        "name": "i",
        "machineType": "zones/us-east5-a/machineTypes/ct6e-standard-4t",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": boot}],
        "networkInterfaces": [{"network": "global/networks/default"}],
        "scheduling": {"provisioningModel": model, "onHostMaintenance": "TERMINATE"},
    }
    status, operation = lab.call("POST", f"{INSTANCES}/instances", body)
    assert status == 200, operation
    lab.later()
    ended: dict[str, Any] = lab.get(f"{INSTANCES}/operations/{operation['name']}")
    return ended


def instance_fails(code: str, model: str = "STANDARD") -> Callable[[Lab, Callable[[], None]], None]:
    """Of an instance with chips of v6e."""

    def check(lab: Lab, run: Callable[[], None]) -> None:
        run()
        assert make_instance(lab, model)["error"]["errors"][0]["code"] == code

    return check


def preemption_deletes(lab: Lab, run: Callable[[], None]) -> None:
    for status in (200, 404):
        assert "error" not in make_instance(lab, "SPOT")
        lab.run("tpuctl sim preempt i")
        lab.later()
        assert lab.call("GET", f"{INSTANCES}/instances/i")[0] == status
        if status == 200:
            lab.call("DELETE", f"{INSTANCES}/instances/i")
            lab.later()
            run()


def late_copy(lab: Lab, run: Callable[[], None]) -> None:
    disks = f"{COMPUTE}/zones/{ZONE}/disks"
    assert lab.call("POST", disks, {"name": "data"})[0] == 200
    lab.later()
    taken: list[str] = []
    lab.simulator.world.hosts.write_disk = lambda *_: taken.append("now")  # type: ignore[method-assign]
    run()
    assert lab.call("POST", f"{disks}/data/createSnapshot", {"name": "s"})[0] == 200
    seen = []
    for seconds in (149, 2, 60):
        lab.later(seconds)
        seen.append((lab.get(f"{COMPUTE}/global/snapshots/s")["status"], len(taken)))
    assert seen == [("CREATING", 0), ("UPLOADING", 1), ("READY", 1)]


def devices(lab: Lab, run: Callable[[], None]) -> list[list[HostDisk]]:
    """The data disks that a host is told of at its first boot and the next one."""
    for name in ("one", "two"):
        assert lab.call("POST", f"{COMPUTE}/zones/{ZONE}/disks", {"name": name})[0] == 200
    lab.later()
    told: list[list[HostDisk]] = []
    hosts = lab.simulator.world.hosts
    hosts.set_disks = lambda _, disks: told.append(list(disks[0]))  # type: ignore[method-assign]
    run()
    paths = [f"projects/sim-project/zones/{ZONE}/disks/{name}" for name in ("one", "two")]
    lab.ready(type="v4-8", dataDisks=[{"sourceDisk": path, "mode": "READ_WRITE"} for path in paths])
    lab.run("tpuctl sim reboot big-1")
    lab.later()
    return told


def unmarked_disks(lab: Lab, run: Callable[[], None]) -> None:
    assert [[each.marked for each in boot] for boot in devices(lab, run)] == [[False, False]] * 2


def device_order(lab: Lab, run: Callable[[], None]) -> None:
    first, second = ([each.number for each in boot] for boot in devices(lab, run))
    assert sorted((first, second)) == [[1, 2], [2, 1]]


def without_a_word(end: str) -> Callable[[Lab, Callable[[], None]], None]:
    def check(lab: Lab, run: Callable[[], None]) -> None:
        told: list[str] = []
        hosts = lab.simulator.world.hosts
        hosts.shutdown = lambda node_key, *_: told.append(node_key)  # type: ignore[method-assign]
        for name in ("big-1", "big-2"):
            lab.ready(name)
            if end == "delete":
                assert lab.call("DELETE", f"{NODES}/{name}")[0] == 200
            else:
                lab.run(f"tpuctl sim preempt {name}")
            lab.later()
            if name == "big-1":
                run()
        assert len(told) == 1

    return check


RATE = "RESOURCE_OPERATION_RATE_EXCEEDED"
CHECKS: dict[str, Callable[[Lab, Callable[[], None]], None]] = {
    "No capacity, said by the operation": stockout,
    "No capacity, said at once": stockout_now,
    "No capacity for instances of Compute Engine": instance_fails("ZONE_RESOURCE_POOL_EXHAUSTED"),
    "Capacity goes and comes back": capacity,
    "A reservation exists": reservation,
    "Reserved capacity runs short": reserved_shortage,
    "Quota of a zone": quota(f"in zone {ZONE}"),
    "Quota of a region": quota("in region us-central2"),
    "Quota of v5e slices of up to eight chips": serving_quota,
    "Quota of a family of Compute Engine's chips": instance_fails("QUOTA_EXCEEDED"),
    "Quota of its preemptible chips": instance_fails("QUOTA_EXCEEDED", "SPOT"),
    "Quota of addresses": quota("IN_USE_ADDRESSES", networkConfig={"enableExternalIps": True}),
    "Quota of health checks": quota("HEALTH_CHECKS"),
    "Too many requests a minute": rate_limit,
    "A queued request fails inside": queued_failure(13, "an internal error has occurred"),
    "A queued request fails for quota": queued_failure(8, "exhausted. Limit 20800 in region us-central2"),
    "A queued request flaps": flapping,
    "A create is refused by its operation": failing_queued_create,
    "A stop fails": failing("stop"),
    "A start fails": failing("start"),
    "An update fails": failing("patch"),
    "A deletion fails": failing("delete"),
    "A deletion does not end": stuck,
    "An operation ends late": late_operation,
    "An operation never ends": endless_operation,
    "The answer to a create is lost": lost_response,
    "A create shows late": late_create,
    "Two operations at a time": conflict,
    "The service is unavailable for a moment": blip,
    "A zone is missing in lists": unreachable,
    "A zone may not be used": access(403, DENIED, "LOCATION_POLICY_VIOLATED"),
    "An API is off": access(403, DENIED, "SERVICE_DISABLED"),
    "Billing is off": access(403, DENIED, "BILLING_DISABLED"),
    "A permission is missing": access(403, DENIED, "IAM_PERMISSION_DENIED"),
    "Credentials have expired": expired,
    "The clock is wrong": clock_off,
    "A preemption": preemption,
    "One worker dies alone": one_worker,
    "Hosts reboot": reboot,
    "Programs use the chips, and one host is behind": load,
    "Any state of a node": any_state,
    "Any health of a node": any_health,
    "Symptoms of a worker": symptoms,
    "Announced maintenance": maintenance,
    "Any state of a queued request": any_queued_state,
    "Another pace": pace,
    "Host keys appear late": late_attributes,
    "Host keys are not told": refused_attributes,
    "A disk is used by another machine": attach_fails("is already being used by"),
    "A disk cannot be attached": attach_fails("internal error"),
    "A disk was copied too often": disk_operation_fails("/data/createSnapshot", {"name": "s"}, RATE),
    "A disk is copied as late as minutes after the call": late_copy,
    "Devices of data disks have no names in /dev/disk/by-id (isolated hosts)": unmarked_disks,
    "Devices of data disks change their names at each boot (isolated hosts)": device_order,
    "A deletion cuts the power of hosts": without_a_word("delete"),
    "A preemption without notice": without_a_word("preempt"),
    "A preemption that deletes instances of Compute Engine": preemption_deletes,
    "Quota of disks": disk_operation_fails("", {"name": "more"}, "QUOTA_EXCEEDED"),
    "Quota of GB of disks": disk_operation_fails(
        "", {"name": "more", "sizeGb": "20", "type": f"zones/{ZONE}/diskTypes/pd-ssd"}, "QUOTA_EXCEEDED"
    ),
    "Quota of snapshots": disk_operation_fails("/data/createSnapshot", {"name": "s"}, "QUOTA_EXCEEDED"),
    "No host key was published": absent_attributes,
    "Hosts know their users late": late_keys,
    "Hosts ban who was refused four times (process hosts)": login_ban,
    "The organisation wants OS Login": os_login,
    "The network is not there": no_network,
    "Hosts reach Google's APIs alone (isolated hosts)": no_internet,
    "The service account may not be used": no_actas,
    "Cloud Storage slows down": storage_refuses(429),
    "Cloud Storage is unavailable for a moment": storage_refuses(503),
    "The answer to a write is lost": storage_lost_response,
    "Reads of a bucket are slow": storage_slow_reads,
    "Cloud Storage does not answer": storage_hangs,
    "A bucket is deleted": bucket_deleted,
    "The metadata server of hosts does not answer": no_metadata,
    "A Compute operation waits": compute_waits,
    "A Compute operation fails": compute_fails,
}


def test_every_promise_has_a_proof() -> None:
    assert list(documented()) == list(CHECKS)


@pytest.mark.parametrize("what", CHECKS)
def test_what_the_page_promises_is_reached_by_its_command(lab: Lab, what: str) -> None:
    commands = documented()[what]
    assert commands

    def run() -> None:
        for command in commands:
            lab.run(command)

    CHECKS[what](lab, run)


def test_every_preset_is_in_the_table() -> None:
    commands = [command for each in documented().values() for command in each]
    assert [
        preset for preset in load_presets() if not any(f" fault {preset}" in each for each in commands)
    ] == []


def test_every_preset_is_named_by_the_help(lab: Lab) -> None:
    said = re.sub(r"-\s+", "-", lab.run("tpuctl sim fault --help"))
    assert [preset for preset in load_presets() if not re.search(rf"\b{preset}\b", said)] == []


def test_faults_can_be_planned_for_every_call_and_for_no_other(lab: Lab) -> None:
    known = load_types("compute.v1").queries
    compute: set[str] = set()
    for kind in KINDS.values():
        compute |= {f"{kind.collection}.{verb}" for verb in (*kind.changes, *kind.reads)}
        verbs = {"list", "aggregatedList", *(("insert", "delete") if kind.message else ())}
        for scope in (None, *(Scope(each, "x") for each in kind.scopes)):
            asked = {f"{kind.collection}.{verb}": kind.method(scope, verb) for verb in verbs}
            compute |= {name for name, method in asked.items() if LIKE.get(method, method) in known}
    compute.discard("networks.delete")  # refused whatever is planned
    storage = {f"storage.{verb}" for verb in ("delete", "get", "head", "patch", "post", "put")}
    tpus = {each.id for each in tpu_calls()}
    assert sorted(fault_methods()) == sorted(tpus | compute | storage)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("fault stockot", "did you mean stockout"),
        ("fault --set kind=eror", "did you mean error"),
        ("fault stockout --set tims=2", "did you mean times"),
        ("fault --set kind=error --set method=node.create", "did you mean nodes.create"),
        ("fault --set kind=error --set code=99", "1 to 16"),
        ("set big-1 stat=READY", "did you mean state"),
        ("set big-1 state=REDY", "did you mean READY"),
        ("set big-1 state=repairing", "REPAIRING"),
        ("set big-1 health=UNHEALTHY_TENSORFLW", "UNHEALTHY_TENSORFLOW"),
        ("set big-1 symptom=OUT_OF_MEMRY", "OUT_OF_MEMORY"),
        ("set big-1 symptom=OUT_OF_MEMORY:9", "0 to 1"),
        ("set big-1 maintenance=SCHEDULD", "SCHEDULED"),
        ("set nobody state=READY", "there are: big-1"),
        ("set big-1 state", "state=REPAIRING"),
        ("capacity us-central2-c=8", "did you mean us-central2-b"),
        ("capacity us-central2-b=many", "us-central2-b=32"),
        ("reservation ours --zone us-central2-b --generation v44 --chips 8", "did you mean v4"),
        ("reservation ours --zone us-central2-c --generation v4 --chips 8", "did you mean us-central2-b"),
        ("reservation --chips 8", "tpuctl sim reservation ours"),
        ("delay node_creat=5", "did you mean node_create"),
        ("delay node_create=soon", "node_create=5"),
        ("load big-1 dutty=9", "duty=90"),
        ("load big-1 duty=900", "duty=90"),
        ("load big-1 server=hang", "server=answers"),
        ("load big-1 ports=8431,x", "ports=8431"),
        ("load big-1 --off duty=9", "--off"),
        ("crash big-2", "big-1"),
        ("crash big-1 --worker 7", "0 to 1"),
    ],
)
def test_names_that_nobody_knows_are_refused_with_what_was_meant(lab: Lab, words: str, hint: str) -> None:
    lab.ready()
    before = lab.simulator.world.digest()
    done = CliRunner().invoke(app, ["sim", *words.split()])
    assert done.exit_code in (2, 5), done.output
    assert hint in done.stderr
    assert lab.simulator.world.digest() == before
    assert lab.simulator.world.faults.list_active() == []
