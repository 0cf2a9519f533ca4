"""What hosts are asked: the agent refuses what is not by its schema, in one place, and never shows values."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tpuctl.hosts.requests import (
    AgentRequest,
    BucketAccessRequest,
    BucketUse,
    CopyRequest,
    HelloRequest,
    Masks,
    StartRequest,
    SurveyRequest,
)
from tpuctl.lib.codec import to_data

AGENT = Path(__file__).resolve().parents[2] / "tpuctl" / "agent"
START = StartRequest("r", "1", 1, ("true",), env={"KEY": "hunter2"}, launch={"per": "host", "processes": 1})
ACCESS = to_data(BucketAccessRequest((BucketUse("b", "p/", write=True),), 8))
CHECK = """
import json, sys
from client import Refused
from verbs import check_request
for verb, request in json.load(sys.stdin):
    try:
        print(json.dumps(check_request(verb, request)))
    except Refused as error:
        print(json.dumps("%s: %s" % (error.code, error)))
"""


def check(*asked: tuple[str, Any]) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        input=json.dumps(asked).encode(),
        env={"PYTHONPATH": str(AGENT)},
        capture_output=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_what_the_client_asks_is_by_the_schema_and_what_it_leaves_out_has_its_default() -> None:
    said = [to_data(START), ACCESS, to_data(HelloRequest(claim=(0, 1)))]
    verbs = ["start", "bucket_access", "hello"]
    assert check(*zip(verbs, said, strict=True)) == json.loads(json.dumps(said))
    (filled,) = check(("start", {"run": "r", "attempt": "1", "fence": 1, "argv": ["true"]}))
    assert filled == json.loads(json.dumps(to_data(StartRequest("r", "1", 1, ("true",)))))


BAD = [
    ("start", {"fence": "1"}, "'fence'"),
    ("start", {"fence": True}, "'fence'"),
    ("start", {"fence": 1.5}, "'fence'"),
    ("start", {"argv": "true"}, "'argv'"),
    ("start", {"argv": ["true", 7]}, "'argv'"),
    ("start", {"env": {"KEY": ["hunter2"]}}, "'env'"),
    ("start", {"env": ["hunter2"]}, "'env'"),
    ("start", {"cwd": None}, "'cwd'"),
    ("start", {"watch_join": 1}, "'watch_join'"),
    ("start", {"grace_s": "9"}, "'grace_s'"),
    ("start", {"colour": "hunter2"}, "colour"),
    ("bucket_access", {"buckets": [{"bucket": "b", "prefix": ""}]}, "'buckets'"),
    ("bucket_access", {"buckets": [{"bucket": "b", "prefix": "", "write": True, "more": 1}]}, "'buckets'"),
    ("bucket_access", {"buckets": [{"bucket": "b", "prefix": "", "write": 1}]}, "'buckets'"),
    ("hello", {"claim": [None]}, "'claim'"),
]


def test_what_is_not_by_the_schema_is_refused_by_the_name_of_its_field() -> None:
    right = {"start": to_data(START), "bucket_access": ACCESS, "hello": {}}
    answers = check(*((verb, {**right[verb], **odd}) for verb, odd, _ in BAD))
    for (verb, odd, named), said in zip(BAD, answers, strict=True):
        assert isinstance(said, str), (verb, odd)
        assert said.startswith("bad-request: "), said
        assert named in said
        assert "hunter2" not in said
    missing = [name for name in right["start"] if name in {"run", "attempt", "fence", "argv"}]
    for name, said in zip(
        missing,
        check(*(("start", {k: v for k, v in right["start"].items() if k != name}) for name in missing)),
        strict=True,
    ):
        assert said == f"bad-request: {name!r} is missing"


def test_a_request_with_secrets_is_shown_without_them() -> None:
    copy = CopyRequest("copy-1", "1", 1, "fetch", "blobs", "5a", 60, "10.0.0.1", 7000, "hunter2")
    masked = SurveyRequest("logs", 10, masks=Masks("r", "1", {"KEY": "hunter2"}))
    assert "hunter2" not in f"{START!r} {copy!r} {masked!r}"


def test_every_verb_of_the_agent_has_its_request() -> None:
    tree = ast.parse((AGENT / "verbs.py").read_text())
    verbs = [ast.literal_eval(each.value) for each in tree.body if isinstance(each, ast.Assign)]
    assert verbs[0].keys() == {each.verb for each in AgentRequest.__subclasses__()}
