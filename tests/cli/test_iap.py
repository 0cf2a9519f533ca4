"""Hosts without external addresses through Identity-Aware Proxy: a program of its own in gcloud's place, which
knows instance names and zones as IAP does, and no addresses."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from tests.cli.test_forward import Hello as Hello
from tests.cli.test_forward import first_line
from tests.cli.test_forward import served as served
from tests.support.require import require_tool
from tests.support.session import Session, open_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TUNNEL = """#!{python}
import json, os, select, socket, sys, urllib.request

verb, instance, port, rest = sys.argv[1:3], sys.argv[3], int(sys.argv[4]), sys.argv[5:]
with open({calls!r}, "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
assert verb == ["compute", "start-iap-tunnel"], verb
assert rest == ["--listen-on-stdin", "--zone=us-central2-b", "--project=sim-project"], rest

with open({sim!r}) as file:
    sim = json.load(file)
with open(sim["token_file"]) as file:
    token = file.read().strip()

def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {{"authorization": "Bearer " + token, "content-type": "application/json"}}
    with urllib.request.urlopen(urllib.request.Request(sim["http"] + path, data, headers)) as answer:
        return json.load(answer)

for node in ask("/_sim/state")["nodes"]:
    found = ask("/v2/" + node["name"] + ":getGuestAttributes", {{"workerIds": [""]}})["guestAttributes"]
    for endpoint, attributes in zip(node.get("networkEndpoints", ()), found):
        names = [e["value"] for e in attributes["queryValue"]["items"] if e["key"] == "hostname"]
        if names == [instance]:
            host = socket.create_connection((endpoint["ipAddress"], port))
            break
    else:
        continue
    break
else:
    sys.exit("ERROR: (gcloud.compute.start-iap-tunnel) [4003] 'failed to connect to backend'")
while True:
    for ready in select.select([0, host], [], [])[0]:
        data = os.read(0, 65536) if ready == 0 else host.recv(65536)
        if not data:
            sys.exit()
        host.sendall(data) if ready == 0 else os.write(1, data)
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        tools = session.root / "bin"
        tools.mkdir()
        state = session.root / "state" / "sim" / "sim.json"
        text = TUNNEL.format(python=sys.executable, calls=str(session.root / "calls"), sim=str(state))
        (tools / "gcloud").write_text(text)
        (tools / "gcloud").chmod(0o755)
        session.environ |= {"PATH": f"{tools}:{session.environ['PATH']}", "TPUCTL_IAP": "true"}
        session.type("up", "v4-16", "big", "--spot", "--pay", "--internal-ips")
        yield session


@pytest.fixture
def names(session: Session) -> Iterator[list[str]]:
    """The instance names of the workers, both of which the test must have reached through the tunnel."""
    calls = session.root / "calls"
    calls.write_text("")
    found = [worker["hostname"] for worker in session.json("status", "big")["workers"]]
    assert len(set(found)) == 2
    yield found
    asked = {json.loads(line)[2] for line in calls.read_text().splitlines()}
    assert asked
    assert asked <= set(found)


def test_commands_reach_every_worker_by_its_instance_name(session: Session, names: list[str]) -> None:
    told = session.type("exec", "big", "--", "hostname").stdout
    assert all(name in told for name in names)


def test_the_users_own_ssh_goes_through_the_tunnel(session: Session, names: list[str]) -> None:
    require_tool("ssh")
    done = session.type("ssh", "big", "--worker", "1", "--", "hostname")
    assert done.stdout.split()[-1] == names[1]


def test_written_ssh_entries_go_through_the_tunnel(session: Session, names: list[str]) -> None:
    told = session.type("ssh-config", "big").stdout
    proxies = [line.split(None, 1)[1] for line in told.splitlines() if "ProxyCommand" in line]
    tail = "--listen-on-stdin --zone=us-central2-b --project=sim-project"
    port = session.json("sim", "status")["ssh_port"]
    assert proxies == [f"gcloud compute start-iap-tunnel {name} {port} {tail}" for name in names]
    session.type("exec", "big", "--worker", "0", "--", "true")


def test_forwarded_ports_go_through_the_tunnel(session: Session, names: list[str], served: int) -> None:
    del names
    client = session.start("forward", "big", f"0:{served}", "--worker", "1")
    try:
        assert urllib.request.urlopen(first_line(client), timeout=30).read() == b"from the host"
    finally:
        client.terminate()
        client.communicate()


def test_two_ways_to_hosts_at_once_are_refused_before_anything_is_asked_for(session: Session) -> None:
    before = len(session.sim_journal())
    session.environ["TPUCTL_JUMP_HOST"] = "gate"
    try:
        refused = session.type("exec", "big", "--", "true", status=2)
    finally:
        del session.environ["TPUCTL_JUMP_HOST"]
    assert "jump_host and iap exclude each other" in refused.stderr
    assert len(session.sim_journal()) == before
