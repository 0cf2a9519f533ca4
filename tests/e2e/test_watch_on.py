"""`watch install --on` with a shared store, from end to end: a machine that is always on brings back what the
laptop made, while the laptop does nothing.

The simulated cloud answers at this machine's own address, so that both take it for the real one: of tpuctl's
settings, only the endpoints and the token differ.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.far import Far, open_far
from tests.support.session import Session
from tests.support.sim import RunningSim, running_sim
from tpuctl.config.settings import ENDPOINTS

URI = "gs://sim-bucket/lab"


def own_address() -> str:
    """An address of this machine that is not its loopback; skips where there is none."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing (RFC 5737: an address for documentation)
        except OSError:
            pytest.skip("this machine has no address besides its loopback")
        found = str(probe.getsockname()[0])
    if found.startswith("127."):
        pytest.skip("this machine has no address besides its loopback")
    return found


@contextmanager
def at_own_address(sim: RunningSim) -> Iterator[str]:
    """The simulator's endpoint under an address that tpuctl does not know for a simulator's."""
    address, port = own_address(), sim.simulator.http.port
    sim.simulator.http.allow_host(address)
    with closing(socket.create_server((address, port))) as server:
        threading.Thread(target=_forward_all, args=(server, port), daemon=True).start()
        yield f"http://{address}:{port}"


def _forward_all(server: socket.socket, port: int) -> None:
    while True:
        try:
            near, _ = server.accept()
        except OSError:
            return  # closed: the test is over
        far = socket.create_connection(("127.0.0.1", port))
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        sink.close()


def write_settings(home: Path, sim: RunningSim, endpoint: str) -> None:
    """What an administrator of a machine sets up: where the APIs are, and an account."""
    path = home / ".config" / "tpuctl" / "config.yaml"
    path.parent.mkdir(mode=0o700, parents=True)
    settings = {**dict.fromkeys(ENDPOINTS, endpoint), "token_file": sim.profile["token_file"]}
    path.write_text(json.dumps({"settings": settings}))
    path.chmod(0o600)


@pytest.fixture
def laptop_and_far(tmp_path: Path) -> Iterator[tuple[Session, Far, RunningSim]]:
    with running_sim(tmp_path) as sim, at_own_address(sim) as endpoint, open_far(tmp_path) as far:
        (tmp_path / "laptop").mkdir()
        laptop = Session(tmp_path / "laptop")
        del laptop.environ["TPUCTL_PROFILE"]
        laptop.environ |= {
            "PATH": f"{far.bin}:{laptop.environ['PATH']}",
            "TPUCTL_PROJECT": sim.profile["project"],
            "TPUCTL_SSH_PORT": str(sim.ssh_port),
        }
        for home in (laptop.root, far.home):
            write_settings(home, sim, endpoint)
        yield laptop, far, sim


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_small_machine_brings_back_what_the_laptop_made(
    laptop_and_far: tuple[Session, Far, RunningSim],
) -> None:
    laptop, far, sim = laptop_and_far
    refused = laptop.type("watch", "install", "--on", "far", "--yes", status=2)
    assert "config init --store gs://" in refused.stderr
    laptop.type("config", "init", "--store", URI)
    dry = laptop.type("watch", "install", "--on", "far", "--dry-run")
    assert f"export TPUCTL_STORE={URI}" in dry.stdout
    assert list(far.home.glob(".local/*")) == []

    laptop.type("watch", "install", "--on", "far", "--yes")
    (line,) = far.spool.lines()
    assert line.startswith("* * * * * ")
    assert "flock -n -o " in line
    laptop.type("up", "v4-16", "big", "--spot", "--pay", "--zone", "us-central2-b")
    sim.preempt("big-1")
    for _ in range(6):
        done = far.run_cron_line(line)
        assert done.returncode == 0, done.stderr
        if laptop.json("status", "big")["node"] == "big-2" and laptop.json("ls")[0]["state"] == "ready":
            break
    assert laptop.json("status", "big")["node"] == "big-2"
    assert laptop.json("ls")[0]["state"] == "ready"
    assert laptop.type("exec", "--on", "big", "--", "echo", "back").stdout.count("back") >= 1

    status = laptop.json("watch", "status")
    assert status["health"] == "good"
    (watcher,) = status["watchdogs"]
    assert watcher["interval_s"] == 60.0
    assert not (laptop.root / "state" / "default" / sim.profile["project"] / "watch").exists()
    assert "big-2" in laptop.type("why", "big").stdout

    again = laptop.type("watch", "install", "--on", "far", "--yes")
    assert "nothing to change" in again.stderr
    assert far.spool.lines() == [line]
    laptop.type("watch", "uninstall", "--on", "far")
    assert far.spool.table.read_text() == ""
    gone = json.loads(laptop.type("watch", "status", "--json", status=1).stdout)
    assert (gone["health"], gone["watchdogs"]) == ("never", [])
