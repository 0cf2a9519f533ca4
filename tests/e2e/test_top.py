"""`tpuctl top` on simulated hosts: the figures that Google's tpu-info reads, and nothing that is made up."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.require import require_isolated_hosts
from tests.support.session import TPUCTL, Session, open_session
from tests.support.tpu_info import read_by_tpu_info, tpu_info_python

pytestmark = pytest.mark.slow
GIB = 1 << 30
STEPS = "import time\nfor n in range(1, 100000):\n    print('step', n, flush=True)\n    time.sleep(0.2)\n"


@pytest.fixture(scope="module")
def four() -> Iterator[Session]:
    """Four hosts of four chips."""
    with open_session() as opened:
        opened.type("up", "v4-32", "big", "--spot", "--pay")
        yield opened


@pytest.fixture
def session(four: Session) -> Iterator[Session]:
    """Those, without a load at first."""
    yield four
    load(four, "--off")


def load(session: Session, *words: str) -> None:
    session.type("sim", "load", "big-1", *words)


def addresses(session: Session) -> list[str]:
    """Of the hosts, where they answer for themselves."""
    [node] = session.json("sim", "status")["state"]["nodes"]
    return [str(each["ipAddress"]) for each in node["networkEndpoints"]]


def chips(frame: Any) -> list[list[dict[str, Any]]]:
    return [each["chips"] for each in frame["workers"]]


def test_the_figures_are_those_that_tpu_info_reads(session: Session) -> None:
    load(session, "duty=91.5", "hbm_gib=24", "queue=2")
    load(session, "--worker", "3", "duty=4", "queue=0")
    frame = session.json("top", "big")
    for address, ours in zip(addresses(session), chips(frame), strict=True):
        theirs = read_by_tpu_info(f"{address}:8431", "V4")
        assert [list(each.values()) for each in theirs["usage"]] == [
            [each["device"], each["hbm_used"], each["hbm_total"], each["duty_percent"]] for each in ours
        ]
        assert [each["queue_size"] for each in theirs["queue"]] == [each["queue"] for each in ours]
    assert frame["slowest"] == {"workers": [3], "why": "duty 4 %, usual is duty 92 %"}
    assert frame["spread"]["duty_percent"] == {"least": 4.0, "median": 91.5, "most": 91.5}
    assert frame["run"] is None
    assert all(0 <= each["cpu_percent"] <= 100 and each["memory_total"] for each in frame["workers"])


def test_several_processes_of_a_host_are_merged(session: Session) -> None:
    load(session, "ports=8431,8432,8433,8434", "duty=50")
    load(session, "--worker", "0", "ports=8433")
    frame = session.json("top", "big")
    devices = [[each["device"] for each in row] for row in chips(frame)]
    assert devices == [[4 * worker + n for n in range(4)] for worker in range(4)]
    assert [each["port"] for each in chips(frame)[1]] == [8431, 8432, 8433, 8434]
    assert {each["port"] for each in chips(frame)[0]} == {8433}


def test_what_is_not_known_is_not_made_up(session: Session) -> None:
    load(session)
    load(session, "--worker", "0", "--off")
    load(session, "--worker", "1", "server=hangs")
    load(session, "--worker", "2", "server=drifted")
    frame = session.json("top", "big")
    off, hangs, drifted, well = frame["workers"]
    assert off["chips"] == hangs["chips"] == []
    assert [each["hangs"] for each in off["silent"]] == [False] * 4
    assert [(each["port"], each["hangs"]) for each in hangs["silent"] if each["hangs"]] == [(8431, True)]
    assert {(each["hbm_used"], each["queue"], each["duty_percent"]) for each in drifted["chips"]} == {
        (None, None, 90.0)
    }
    assert {(each["hbm_used"], each["queue"], each["duty_percent"]) for each in well["chips"]} == {
        (12 * GIB, 1, 90.0)
    }
    shown = session.type("top", "big").stdout
    assert re.search(r"^0 +- +- +- +- +- +no server$", shown, re.MULTILINE)
    assert re.search(r"^1 +- .*port 8431 hangs$", shown, re.MULTILINE)
    assert re.search(r"^2 +0-3 +90 +- +32 +-$", shown, re.MULTILINE)


def test_a_run_shows_its_steps_and_a_name_that_nobody_knows_is_refused(session: Session) -> None:
    load(session)
    (session.work / "steps.py").write_text(STEPS)
    words = ("--on", "big", "--no-checkpoint", "--name", "counting", "--detach", "--progress", r"step (\d+)")
    session.type("run", *words, "steps.py")
    until, frame = time.monotonic() + 60, session.json("top", "counting")
    while None in [each["step"] for each in frame["workers"]]:
        assert time.monotonic() < until, frame
        frame = session.json("top", "counting")
    assert (frame["run"], frame["run_state"], frame["slice"]) == ("counting", "running", "big")
    assert all(each["state"] == "running" and each["step_age_s"] < 60 for each in frame["workers"])
    assert session.json("top")["run"] == "counting"
    assert "run counting (running)" in session.type("top", "big", "--once").stdout
    session.type("stop", "counting", "--yes")
    assert "no slice or run called countin" in session.type("top", "countin", status=5).stderr


def test_a_terminal_is_refreshed_in_place_until_ctrl_c(session: Session) -> None:
    load(session, "duty=77")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [TPUCTL, "top", "big"], cwd=session.work, env={**session.environ, "TERM": "xterm"}, stdout=theirs
    )
    os.close(theirs)
    try:
        said = _read(ours, lambda text: text.count("\x1b[H") >= 2)
        load(session, "duty=33")
        said = _read(ours, lambda text: " 33 " in text)
        process.send_signal(signal.SIGINT)
        said += _read(ours, lambda text: "\x1b[?1049l" in text)
        assert process.wait(30) == 0
    finally:
        process.kill()
        os.close(ours)
    assert all(len(line) <= 80 for line in re.sub(r"\x1b\[[?0-9]*[a-zA-Z]", "", said).split("\r\n"))


def test_only_top_imports_grpc(session: Session) -> None:
    def imports(*words: str) -> set[str]:
        done = session.finish(session.start(*words, program=(sys.executable, "-X", "importtime", TPUCTL)))
        assert done.returncode == 0, done.stderr
        return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()} & {
            "grpc",
            "tpuctl.telemetry",
        }

    assert imports("top", "big") == {"grpc", "tpuctl.telemetry"}
    for words in (("ls",), ("status", "big"), ("exec", "big", "--", "true"), ("why", "big")):
        assert imports(*words) == set(), words


def _read(terminal: int, enough: Any, within_s: float = 60.0) -> str:
    said, until = "", time.monotonic() + within_s
    while not enough(said):
        assert time.monotonic() < until, said
        if select.select([terminal], [], [], 0.5)[0]:
            said += os.read(terminal, 65536).decode()
    return said


PROMETHEUS = """\
import http.server, os
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"grain_python_dataset_next_duration_ns_count 2\\n"
                         b"grain_python_dataset_next_duration_ns_sum 5000000\\n")
http.server.HTTPServer(("127.0.0.1", int(os.environ["PYGRAIN_PROMETHEUS_PORT"])), Page).serve_forever()
"""


def test_what_grain_tells_is_shown_and_a_host_that_is_dead_costs_its_own_row(session: Session) -> None:
    load(session)
    (session.work / "grain.py").write_text(PROMETHEUS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ("--on", "big", "--worker", "0", "--alone", "--no-checkpoint", "--name", "grain", "--detach")
    session.type("run", *words, "--var", f"PYGRAIN_PROMETHEUS_PORT={port}", "grain.py")
    until, frame = time.monotonic() + 60, session.json("top", "big")
    while frame["workers"][0]["data_wait_s"] is None:
        assert time.monotonic() < until, frame
        frame = session.json("top", "big")
    assert frame["workers"][0]["data_wait_s"] == 0.0025
    assert "data wait 0.0025 s" in session.type("top", "big").stdout
    session.type("sim", "crash", "big-1", "--worker", "2", "--worker", "3")
    done = session.type("top", "big", "--json", status=3)
    frame = json.loads(done.stdout)
    assert [bool(each["error"]) for each in frame["workers"]] == [False, False, True, True]
    assert [len(each["chips"]) for each in frame["workers"]] == [4, 4, 0, 0]
    assert frame["workers"][2]["cpu_percent"] is None
    assert re.search(
        r"^2-3 .*refused the connection$", session.type("top", "big", status=3).stdout, re.MULTILINE
    )


@pytest.mark.long
def test_the_screen_of_32_hosts_is_80_columns_wide_and_no_longer_than_a_terminal() -> None:
    with open_session() as session:
        session.type("up", "v4-256", "big", "--spot", "--pay")
        load(session, "duty=92")
        for worker in range(32):
            if worker % 3:
                load(session, "--worker", str(worker), f"duty={60 + worker}", f"hbm_gib={worker}")
        frame = session.json("top", "big")
        assert [len(each["chips"]) for each in frame["workers"]] == [4] * 32
        for worker in (0, 17, 31):
            theirs = read_by_tpu_info(f"{addresses(session)[worker]}:8431", "V4")["usage"]
            ours = chips(frame)[worker]
            assert [each["duty_cycle_pct"] for each in theirs] == [each["duty_percent"] for each in ours]
            assert [each["memory_usage"] for each in theirs] == [each["hbm_used"] for each in ours]
        assert len(session.type("top", "big").stdout.splitlines()) <= 24
        # A pipe gets the lines whole, however wide.
        ours, theirs = pty.openpty()
        once = (TPUCTL, "top", "big", "--once")
        with subprocess.Popen(once, cwd=session.work, env=session.environ, stdout=theirs):
            os.close(theirs)
            said = _read(ours, lambda text: "slowest " in text)
        os.close(ours)
        assert max(map(len, said.split("\r\n"))) <= 80


PCI = """\
set -e
mkdir -p /run/pci/{0,1,2,3}
for chip in /run/pci/*; do
    echo 0x1ae0 > $chip/vendor; echo 0x005e > $chip/device; echo 0x0000 > $chip/subsystem_device
done
mount --bind /run/pci /sys/bus/pci/devices
exec BIN/python BIN/tpu-info
"""
"""Four chips of v4, as Google's `tpu_info.device` looks for them."""


@pytest.mark.soak
def test_the_command_of_tpu_info_on_an_isolated_host_shows_the_same() -> None:
    require_isolated_hosts()
    with (
        tempfile.TemporaryDirectory(prefix="tpuctl-tpu-info-", dir="/var/tmp") as folder,  # hosts see that
        open_session("--instant", "--hosts", "isolated") as session,
    ):
        Path(folder).chmod(0o755)
        shutil.copytree(tpu_info_python().parents[1], folder, symlinks=True, dirs_exist_ok=True)
        session.type("up", "v4-16", "big", "--spot", "--pay")
        load(session, "duty=63.5", "hbm_gib=3.25")
        chips_now = chips(session.json("top", "big"))[1]
        script = PCI.replace("BIN", f"{folder}/bin")
        words = ("exec", "big", "--worker", "1", "--", "sudo", "unshare", "--mount", "bash", "-c", script)
        shown = session.type(*words).stdout
    rows = re.findall(r"(\d+) +[|│] +([\d.]+) GiB / ([\d.]+) GiB +[|│] +([\d.]+)%", shown)
    assert [(int(d), float(used), float(total), float(duty)) for d, used, total, duty in rows] == [
        (c["device"], c["hbm_used"] / GIB, c["hbm_total"] / GIB, c["duty_percent"]) for c in chips_now
    ]
    assert len(rows) == 4
