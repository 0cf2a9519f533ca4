"""What `data stage` is told, and the record of what it brings."""

from __future__ import annotations

import json

import pytest

from tpuctl.datasets.stage import HubRef, StagedFile, StageRecord, conflict, parse_hub, parse_record
from tpuctl.errors import UsageError
from tpuctl.lib.codec import to_data

GOOD = {
    "hf://org/name@main": HubRef("model", "org/name", "main"),
    "hf://models/org/name@v1.0": HubRef("model", "org/name", "v1.0"),
    "hf://gpt2@main": HubRef("model", "gpt2", "main"),
    "hf://datasets/org/name@refs/pr/1": HubRef("dataset", "org/name", "refs/pr/1"),
    "hf://datasets/squad@e6d639f": HubRef("dataset", "squad", "e6d639f"),
}
BAD = {
    "gs://bucket/name@main": "no repository of the hub",
    "org/name@main": "no repository of the hub",
    "hf://org/name": "names no revision",
    "hf://org/name@": "names no revision",
    "hf://org/name@a b": "names no revision",
    "hf://@main": "no model or data set",
    "hf://org/@main": "no model or data set",
    "hf://org//name@main": "no model or data set",
    "hf://org/-name@main": "no model or data set",
    "hf://spaces/org/name@main": "no model or data set",
    "hf://datasets/org/name/data@main": "is a path within a repository",
}
FILES = (StagedFile("a.bin", 3, "0" * 64, "AAAAAA=="), StagedFile("b/c.json", 2))
RECORD = StageRecord(False, "dataset", "org/name", "main", "e" * 40, FILES, include=("*.json",))


@pytest.mark.parametrize("text", GOOD)
def test_a_repository_is_named_with_its_kind_and_revision(text: str) -> None:
    assert parse_hub(text) == GOOD[text]
    assert parse_hub(str(GOOD[text])) == GOOD[text]


@pytest.mark.parametrize("text", BAD)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=BAD[text]):
        parse_hub(text)


def test_a_path_is_answered_with_the_pattern_for_it() -> None:
    with pytest.raises(UsageError) as refused:
        parse_hub("hf://datasets/org/name/data/en@main")
    assert refused.value.hint == "hf://datasets/org/name@main --include 'data/en*'"


def test_a_record_is_read_as_it_was_written() -> None:
    assert parse_record(json.dumps(to_data(RECORD)).encode()) == RECORD
    for other in (b"", b"[]", b"{}", b'{"format": "tpuctl-stage/1"}', b'{"format": "tpuctl-stage/2"}'):
        assert parse_record(other) is None


def test_what_is_below_a_prefix_is_gone_on_with_only_as_it_was_asked_for() -> None:
    source = HubRef("dataset", "org/name", "main")
    assert conflict(RECORD, source, ("*.json",), ()) == ""
    assert conflict(RECORD, source, (), ()) == "files of hf://datasets/org/name@main by other patterns"
    other = HubRef("dataset", "org/name", "v2")
    assert conflict(RECORD, other, ("*.json",), ()) == "files of hf://datasets/org/name@main"
