"""Which environments a host tells of: all of them, or those whose keys it is asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.hosts.test_lean_agent import AGENT, BEGIN
from tpuctl.hosts.facts import Section
from tpuctl.hosts.requests import FactsRequest, HelloRequest
from tpuctl.lib.codec import to_data


def told(home: Path, request: FactsRequest | HelloRequest) -> list[str]:
    """The keys of the environments in the answer."""
    words = [sys.executable, "-B", "-I", "-S", "-c", BEGIN, str(AGENT), request.verb]
    line = json.dumps(to_data(request)).encode() + b"\n"
    done = subprocess.run(words, input=line, env={"HOME": str(home)}, capture_output=True, check=True)
    answer = json.loads(done.stdout)
    return [each["key"] for each in answer.get("facts", answer)["envs"]]


def test_a_host_looks_at_the_files_of_the_environments_that_are_asked_for(tmp_path):
    for key in ("a" * 16, "b" * 16):
        (tmp_path / ".tpuctl/envs" / key).mkdir(parents=True)
    envs = (Section.ENVS,)
    assert told(tmp_path, FactsRequest(envs)) == ["a" * 16, "b" * 16]
    assert told(tmp_path, FactsRequest(envs, envs=("b" * 16, "c" * 16))) == ["b" * 16]
    assert told(tmp_path, HelloRequest(sections=envs, envs=("b" * 16,))) == ["b" * 16]
    assert told(tmp_path, FactsRequest(envs, envs=("c" * 16,))) == []
