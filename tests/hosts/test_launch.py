"""Variables of processes that share a host's chips, beside what the frameworks' own helpers set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.jax_python import flax_packages
from tests.support.require import require_torch_xla
from tpuctl.model.processes import TOPOLOGY

AGENT = Path(__file__).resolve().parents[2] / "tpuctl" / "agent"
V4_8 = {"ACCELERATOR_TYPE": "v4-8", "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1", "TPU_PROCESS_BOUNDS": "1,1,1"}
LITE_8 = {"TPU_CHIPS_PER_PROCESS_BOUNDS": "2,4,1", "TPU_PROCESS_BOUNDS": "1,1,1"}
ROWS: list[dict[str, Any]] = [
    {**V4_8},
    {**V4_8, "ACCELERATOR_TYPE": "v5p-8"},
    {**V4_8, "ACCELERATOR_TYPE": "v5litepod-4"},
    {**LITE_8, "ACCELERATOR_TYPE": "v5litepod-8"},
    {**LITE_8, "ACCELERATOR_TYPE": "v6e-8"},
    {**V4_8, "ACCELERATOR_TYPE": "v4-16", "TPU_PROCESS_BOUNDS": "1,1,2", "WORKER_ID": "1"},
    {**V4_8, "ACCELERATOR_TYPE": "v4-32", "TPU_PROCESS_BOUNDS": "1,1,4", "WORKER_ID": "2"},
]
"""Single hosts, and a worker in the middle of a slice."""


def in_agent(code: str, given: Any, **variables: str) -> Any:
    """What `code` prints with the agent's module and `given`."""
    done = subprocess.run(
        [sys.executable, "-c", f"import json, sys, launch\ngiven = json.load(sys.stdin)\n{code}"],
        input=json.dumps(given),
        env={"PYTHONPATH": str(AGENT), "PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def addresses(row: Mapping[str, str]) -> list[str]:
    x, y, z = map(int, row["TPU_PROCESS_BOUNDS"].split(","))
    return [f"10.0.0.{n}" for n in range(x * y * z)]


def joint(row: Mapping[str, str]) -> list[dict[str, str]]:
    given = {"env": {"WORKER_ID": "0", **row}, "addresses": addresses(row)}
    found: list[dict[str, str]] = in_agent(
        "print(json.dumps(launch.joint(given['env'], given['addresses'])))", given
    )
    return found


TORCH_XLA = """\
import http.server, json, os, sys, threading

rows, now = json.load(sys.stdin), {}
class Metadata(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = now[self.path.rpartition("/")[2]].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["http_proxy"] = "http://127.0.0.1:%d" % server.server_port

from torch_xla._internal import tpu
found, before = [], dict(os.environ)
for row in rows:
    now.update({"tpu-env": row["env"], "worker-network-endpoints": row["endpoints"]})
    found.append([])
    for rank in range(row["count"]):
        os.environ.clear()
        os.environ.update(before)
        tpu.configure_topology(rank, row["count"])
        found[-1].append({name: os.environ[name] for name in os.environ if name not in before})
print(json.dumps(found))
"""


@pytest.mark.slow
def test_the_variables_are_those_of_torch_xla_by_the_same_metadata() -> None:
    ours = [joint(row) for row in ROWS]
    asked = [
        {
            "env": "".join(f"{key}: '{value}'\n" for key, value in {"WORKER_ID": "0", **row}.items()),
            "endpoints": ",".join(f"w-{n}:7:{address}" for n, address in enumerate(addresses(row))),
            "count": len(mine),
        }
        for row, mine in zip(ROWS, ours, strict=True)
    ]
    done = subprocess.run(
        [require_torch_xla(), "-c", TORCH_XLA],
        input=json.dumps(asked),
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PJRT_DEVICE": "CPU"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert [[{name: each[name] for name in other} for each, other in zip(*pair, strict=True)]
            for pair in zip(ours, theirs, strict=True)] == theirs  # fmt: skip


HELPER = """\
import sys
from absl import flags
from jax._src import test_multiprocess
flags.FLAGS(["x", "--num_processes=" + sys.argv[1], "--tpu_chips_per_process=" + sys.argv[2]])
test_multiprocess._main([sys.argv[3]], None)
"""
CHILD = """\
import json, os
found = {name: value for name, value in os.environ.items() if name.startswith(("TPU_", "CLOUD_", "ALLOW_"))}
print(json.dumps(found))
"""


def jax_helper(folder: Path, processes: int, chips: int) -> list[dict[str, str]]:
    """What JAX's helper for tests on TPUs starts each process with."""
    (folder / "child.py").write_text(CHILD)
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(flax_packages()),
        "JAX_PLATFORMS": "cpu",
        "TEST_UNDECLARED_OUTPUTS_DIR": str(folder),
    }
    words = [sys.executable, "-c", HELPER, str(processes), str(chips), str(folder / "child.py")]
    subprocess.run(words, env=environ, capture_output=True, check=True, timeout=300)
    return [json.loads((folder / f"jax_{n}_stdout.log").read_text()) for n in range(processes)]


SAME = (
    "ALLOW_MULTIPLE_LIBTPU_LOAD",
    "CLOUD_TPU_TASK_ID",
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
    "TPU_PROCESS_BOUNDS",
    "TPU_VISIBLE_CHIPS",
)


@pytest.mark.slow
def test_the_variables_are_those_of_jax_where_it_agrees_with_torch_xla(tmp_path: Path) -> None:
    theirs = jax_helper(tmp_path, 4, 1)
    assert [[each[name] for name in SAME] for each in joint(V4_8)] == [
        [each[name] for name in SAME] for each in theirs
    ]
    assert [each["TPU_PROCESS_ADDRESSES"].count("localhost:") for each in (*joint(V4_8), *theirs)] == [4] * 8

    eight = jax_helper(tmp_path, 8, 1)
    metadata = {"4,2,1": "4,2,1", "2,4,1": "2,4,1"}
    bounds = {
        box: {each["TPU_PROCESS_BOUNDS"] for each in joint({**LITE_8, "TPU_CHIPS_PER_PROCESS_BOUNDS": box})}
        for box in metadata
    }
    assert {each["TPU_PROCESS_BOUNDS"] for each in eight} == {"4,2,1"}
    assert bounds == {"4,2,1": {"4,2,1"}, "2,4,1": {"2,4,1"}}, "the metadata decide"


@pytest.mark.parametrize(
    ("row", "hosts", "why"),
    [
        ({"WORKER_ID": "0"}, 1, "its metadata (tpu-env) have no TPU_CHIPS_PER_PROCESS_BOUNDS"),
        (
            {**V4_8, "TPU_PROCESS_BOUNDS": "2,2"},
            1,
            "its metadata (tpu-env) say TPU_PROCESS_BOUNDS='2,2', which is no box",
        ),
        ({**V4_8, "WORKER_ID": "0"}, 2, "its metadata name 2 hosts, in a slice of 1"),
        (V4_8, 1, "its metadata (tpu-env) have no WORKER_ID"),
    ],
)
def test_metadata_that_do_not_say_enough_are_refused(row: dict[str, str], hosts: int, why: str) -> None:
    code = "try: print(launch.joint(*given))\nexcept ValueError as error: print(json.dumps(str(error)))"
    assert in_agent(code, [row, ["h"] * hosts]) == why


def test_a_program_beside_others_has_ports_of_its_own() -> None:
    first, last, whole = in_agent(
        "print(json.dumps([launch.independent(chips) for chips in given]))", [[0], [3], [0, 1, 2, 3]]
    )
    assert last == {
        "TPU_VISIBLE_CHIPS": "3",
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_ADDRESSES": "localhost:8479",
        "TPU_PROCESS_PORT": "8479",
        "CLOUD_TPU_TASK_ID": "0",
        "TPU_RUNTIME_METRICS_PORTS": "8434",
    }
    assert (first["TPU_PROCESS_PORT"], whole["TPU_CHIPS_PER_PROCESS_BOUNDS"]) == ("8476", "2,2,1")


def test_metadata_are_read_in_both_forms_and_stale_variables_go() -> None:
    text = "TYPE: 'V4'\nTPU_PROCESS_BOUNDS: '1,1,1'\n\nodd\n"
    assert in_agent("print(json.dumps(launch.parse_tpu_env(given)))", text) == {
        "TYPE": "V4",
        "TPU_PROCESS_BOUNDS": "1,1,1",
    }
    read = "print(json.dumps([launch.parse_endpoints(each) for each in given]))"
    assert in_agent(read, ["w-0:7:10.0.0.1,w-1:7:10.0.0.2", "w-0,w-1"]) == [
        ["10.0.0.1", "10.0.0.2"],
        ["w-0", "w-1"],
    ]
    stale = {"TPU_VISIBLE_CHIPS": "0", "TPU_LIBRARY_PATH": "/l", "HOME": "/h"}
    assert in_agent("print(json.dumps(launch.without_family(given)))", stale) == {
        "TPU_LIBRARY_PATH": "/l",
        "HOME": "/h",
    }


def test_both_sides_mean_the_same_variables() -> None:
    [first, *_] = joint(V4_8)
    assert set(first) - {"ALLOW_MULTIPLE_LIBTPU_LOAD"} == TOPOLOGY


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("w-0:7:10.0.0.1,w-1:8:10.0.0.2", ["10.0.0.1", "10.0.0.2"]),
        ("big-1-w-001, big-1-w-002", ["big-1-w-001", "big-1-w-002"]),
        ("big-1-w-001", ["big-1-w-001"]),
        ("", []),
    ],
)
def test_hosts_are_named_in_both_forms_that_metadata_have(text: str, found: list[str]) -> None:
    assert in_agent("print(json.dumps(launch.parse_endpoints(given)))", text) == found


class Metadata(BaseHTTPRequestHandler):
    """The metadata server of a v4-8."""

    def do_GET(self) -> None:
        rows = "".join(f"{key}: '{value}'\n" for key, value in {**V4_8, "WORKER_ID": "0"}.items())
        body = (rows if self.path.endswith("/tpu-env") else "w-0:7:10.0.0.1").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("count", "answers", "said"),
    [
        (4, True, 4),
        (8, True, "its metadata (tpu-env) say 4 chips, not 8"),
        (4, False, "the metadata server does not say tpu-env and worker-network-endpoints"),
    ],
)
def test_a_host_asks_its_own_metadata(count: int, answers: bool, said: object) -> None:
    code = (
        "import programs, base\ntry: found = len(programs.chips(given))\n"
        "except base.Refused as error: found = str(error)\nprint(json.dumps(found))"
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port if answers else 9
        assert in_agent(code, count, GCE_METADATA_HOST=f"127.0.0.1:{port}") == said
        server.shutdown()
