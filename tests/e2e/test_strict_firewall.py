"""On a network without a rule for traffic between hosts: what runs, what ends in seconds, what to type then."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.require import require_isolated_hosts, require_tool
from tests.support.session import TPUCTL, Session, open_session
from tpuctl.sim.hosts.files import SYSTEM_PATH

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.gcloud, pytest.mark.timeout(600)]
MEETS = """\
import os, socket, sys
host, port = os.environ["TPUCTL_COORDINATOR"].split(":")
if os.environ["TPUCTL_RANK"] == "0":
    with socket.create_server(("", int(port))) as server:
        server.settimeout(60)
        print("met", server.accept()[1][0], "at", port, flush=True)
else:
    for _ in range(600):
        try:
            socket.create_connection((host, int(port)), 60).close()
            break
        except ConnectionRefusedError:
            __import__("time").sleep(0.1)
"""
TORCH = """\
import os, socket, sys
if os.environ["TPUCTL_RANK"] == "1":
    where = (os.environ["TPUCTL_COORDINATOR"].split(":")[0], 29500)
    try:
        socket.create_connection(where, 2).close()
    except TimeoutError:
        sys.exit("torch.distributed.DistNetworkError: The client socket has timed out after 2000ms "
                 f"while trying to connect to {where}.")
else:
    __import__("time").sleep(60)
"""
TAKES = "import socket, time; s = socket.create_server(('', 8476)); print('taken', flush=True); time.sleep(600)"
RUN = ("run", "--on", "big", "--no-checkpoint", "--max-failures", "0", "--grace", "1")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    require_isolated_hosts()
    require_tool("nft", SYSTEM_PATH)
    require_tool("gcloud")
    with open_session("--instant", "--hosts", "isolated", "--firewall", "strict") as made:
        (made.work / "meets.py").write_text(MEETS)
        (made.work / "torch_like.py").write_text(TORCH)
        made.type("up", "v4-16", "big", "--spot", "--pay")
        yield made


def gcloud(session: Session, command: str) -> str:
    """What the real one says to a command, with the simulator's environment as hints have it."""
    words = ("-ec", f'PATH="{Path(TPUCTL).parent}:$PATH"; eval "$(tpuctl sim env)"; {command}')
    done = session.finish(session.start(*words, program=("sh",)))
    assert done.returncode == 0, done.stderr
    return done.stdout


def coordinator_of(session: Session, run: str) -> str:
    return str(session.type("logs", run, "--worker", "0").stdout)


def test_workers_meet_at_the_port_that_google_opens(session: Session) -> None:
    session.type(*RUN, "--name", "opened", "meets.py")
    assert "at 8476" in coordinator_of(session, "opened")


def test_a_port_of_the_programs_own_is_named_with_where_to_look(session: Session) -> None:
    told = session.type(*RUN, "--name", "own-port", "torch_like.py", status=1).stderr
    assert "coordinator-unreachable" in told
    assert "whether hosts reach each other: tpuctl doctor" in told
    doctor = session.type("doctor", status=None).stdout
    assert "gcloud compute firewall-rules create default-allow-internal" in doctor


def test_slices_do_not_meet_where_only_their_own_hosts_do(session: Session) -> None:
    session.type("up", "v4-8", "pair", "--slices", "2", "--spot", "--pay")
    told = session.type("run", "--on", "pair", *RUN[3:], "--name", "apart", "meets.py", status=1).stderr
    assert re.search(r"worker 1 cannot reach worker 0 at [0-9.]+:8476 ", told)
    session.type("down", "pair", "--yes")


def test_a_closed_port_ends_the_run_in_seconds_and_what_it_says_opens_it(session: Session) -> None:
    holder = session.start("exec", "--worker", "0", "big", "--", "python3", "-c", TAKES)
    try:
        until_taken(session)
        began = time.monotonic()
        told = session.type(*RUN, "--name", "closed", "meets.py", status=1).stderr
        assert time.monotonic() - began < 60
        assert "port 8476 of worker 0 is taken: workers meet at " in told
        assert "worker 1 cannot reach worker 0 at " in told
        row = next(row for row in session.json("runs") if row["id"] == "closed")
        assert row["state"] == "failed"
        assert "lets hosts reach each other" in row["reason"]
        assert "cannot reach worker 0" in session.type("why", "closed").stdout
        [attempt] = session.json("manifest", "closed")["attempts"]
        assert (attempt["cause"], attempt["started"]) == ("not-set-up", None)
        [command] = re.findall(r"^hint: (?:\[sim\] )?(.*gcloud .*)", told, re.M)
        gcloud(session, command)
        told = session.type(*RUN, "--name", "mended", "meets.py").stderr
        assert "port 8476 of worker 0 is taken: workers meet at " in told
        assert "port 8476 of worker 0 is taken" in session.type("why", "mended").stdout
        rule = re.findall(r"create (\S+)", command)[0]
        assert rule in gcloud(session, "gcloud compute firewall-rules list --format='value(name)'")
        gcloud(session, f"gcloud compute firewall-rules update {rule} --disabled")
        session.type(*RUN, "--name", "disabled", "meets.py", status=1)
        gcloud(session, f"gcloud compute firewall-rules delete {rule} --quiet")
    finally:
        holder.kill()
        holder.communicate(timeout=60)


def until_taken(session: Session) -> None:
    until = time.monotonic() + 60
    while True:
        listens = session.type("exec", "--worker", "0", "big", "--", "ss", "-ltn").stdout
        if ":8476" in listens:
            return
        assert time.monotonic() < until, listens


def test_ssh_comes_in_by_its_rule_only(session: Session) -> None:
    gcloud(session, "gcloud compute firewall-rules update default-allow-ssh --source-ranges=10.1.0.0/16")
    try:
        done = session.type("exec", "--timeout", "3", "big", "--", "true", status=None)
        assert done.returncode != 0
    except subprocess.TimeoutExpired:
        pass
    finally:
        gcloud(session, "gcloud compute firewall-rules update default-allow-ssh --source-ranges=0.0.0.0/0")
    session.type("exec", "big", "--", "true")
