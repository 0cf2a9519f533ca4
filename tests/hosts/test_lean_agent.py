"""What a start of a program imports on its host: many modules of the standard library take longer than that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.hosts import wait_until
from tpuctl.hosts.requests import AgentRequest, AttemptsRequest, HelloRequest, PrepareRequest, StartRequest
from tpuctl.lib.codec import to_data

AGENT = Path(__file__).parents[2] / "tpuctl/agent"
BEGIN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from entry import main; sys.exit(main(sys.argv[1:]))"
NOT_NEEDED = {"columns", "dumps", "join_hook", "operations", "placing", "progress", "secret_forms"}
DEAR = {"contextlib", "pkgutil", "re", "shutil", "subprocess", "typing"}

APART = """
import os, sys
sys.path.insert(0, sys.argv[1])
import mount_spaces, serve
first = os.open("/", os.O_RDONLY)
os.close(first)
def run(_):
    now = os.open("/", os.O_RDONLY)
    return mount_spaces.mount_of(now) < 0 or now != first
serve.answer_apart("", run, b"", "/")
"""


def test_who_does_a_request_has_the_files_of_modules_open_and_no_others():
    """`mount_spaces` opens /proc when it is imported."""
    words = [sys.executable, "-B", "-I", "-S", "-c", APART, str(AGENT)]
    done = subprocess.run(words, capture_output=True, check=True)
    assert done.stdout == b"b\0\0\0\0" + b"x\0\0\0\x01" + b"0"


def imported(home: Path, request: AgentRequest) -> set[str]:
    """The modules that Python imports to do what is asked."""
    words = [sys.executable, "-B", "-I", "-S", "-X", "importtime", "-c", BEGIN, str(AGENT), request.verb]
    line = json.dumps(to_data(request)).encode() + b"\n"
    done = subprocess.run(words, input=line, env={"HOME": str(home)}, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    return {row.rpartition("|")[2].strip() for row in done.stderr.decode().splitlines()}


def test_to_prepare_and_start_a_program_imports_nothing_dear(tmp_path):
    """Nor what of the agent it does not need: a new host compiles each module that it imports."""
    found = imported(tmp_path, HelloRequest(claim=(), chips=True))
    found |= imported(tmp_path, AttemptsRequest()) | imported(tmp_path, PrepareRequest("r1", "1", 1, None, 0))
    found |= imported(tmp_path, StartRequest("r1", "1", 1, ("true",), watch_join=True))
    assert {"facts_chips", "prepare", "state", "supervisor"} <= found
    assert not found & (DEAR | NOT_NEEDED)
    status = tmp_path / ".tpuctl/runs/r1/1/status.json"
    wait_until(lambda: json.loads(status.read_text())["state"] == "exited")


def test_a_supervisor_beats_without_the_import_of_threading():
    code = "import sys; sys.path.insert(0, sys.argv[1]); import heartbeat; print('threading' in sys.modules)"
    words = [sys.executable, "-B", "-I", "-S", "-c", code, str(AGENT)]
    assert subprocess.run(words, capture_output=True, check=True, text=True).stdout == "False\n"
