"""Records that an earlier version wrote are read, and written again as they were."""

from __future__ import annotations

import json
import sqlite3

import pytest

from tests.support.recorded_store import FOLDER
from tpuctl.doctor.damage import KINDS
from tpuctl.engine.ports import Document
from tpuctl.errors import DamagedRecordError
from tpuctl.lib.codec import to_data
from tpuctl.model.records import RunRecord
from tpuctl.state.repository import decode


def recorded():
    db = sqlite3.connect(":memory:")
    db.executescript((FOLDER / "store.sql").read_text())
    return [(key, json.loads(data)) for key, data in db.execute("SELECT key, data FROM documents")]


def as_recorded(again, data):
    """`again` without the fields that came later, at any depth."""
    if isinstance(data, dict) and isinstance(again, dict):
        return {name: as_recorded(again[name], data[name]) for name in data if name in again}
    if isinstance(data, list) and isinstance(again, list) and len(data) == len(again):
        return [as_recorded(new, old) for new, old in zip(again, data, strict=True)]
    return again


def flat(key, data):
    """A run as earlier versions wrote it: what was asked for beside what became of it."""
    return {**data, **data["spec"]} if key.startswith("runs/") else data


def test_every_record_of_an_earlier_version_is_read_and_written_as_it_was():
    typed = [
        (key, KINDS[key.partition("/")[0]], data) for key, data in recorded() if key.partition("/")[0] in KINDS
    ]
    for key, kind, data in typed:
        again = flat(key, json.loads(json.dumps(to_data(decode(kind, Document(key, 1, data))))))
        assert as_recorded(again, data) == {name: data[name] for name in data if name in again}, key
    assert {kind.__name__ for _, kind, _ in typed} >= {
        *("Attempt", "CapacityNote", "Cursor", "Grant", "Heartbeat", "LeaseRecord", "Retired", "RunRecord"),
        "SliceRecord",
    }


def test_a_value_of_another_kind_in_a_run_of_an_earlier_version_is_named():
    key, data = next((key, data) for key, data in recorded() if key.startswith("runs/"))
    with pytest.raises(DamagedRecordError, match=r"Expected `array`, got `str` - at `\$.spec.argv`"):
        decode(RunRecord, Document(key, 1, {**data, "argv": "python3"}))
    with pytest.raises(DamagedRecordError, match=r"missing required field `argv` - at `\$.spec`"):
        decode(RunRecord, Document(key, 1, {name: data[name] for name in data if name != "argv"}))


def test_what_the_bucket_holds_is_what_sqlite_holds():
    lines = [json.loads(line) for line in (FOLDER / "bucket.jsonl").read_text().splitlines()]
    docs = {
        line["name"].removeprefix("docs/"): json.loads(line["text"])["data"]
        for line in lines
        if "docs/" in line["name"]
    }
    for key, data in recorded():
        if not key.startswith(("journal/", "leases/")):
            assert docs[key] == data, key
