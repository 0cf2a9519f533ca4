"""Records survive the store."""

from __future__ import annotations

import json

import pytest

from tests.support.builders import a_run, a_slice, an_attempt
from tpuctl.lib.codec import from_data, to_data
from tpuctl.model.records import Cause, EnvironmentRef, Loss, RunRecord, SliceRecord, WorkerEnd


def through_json(value):
    return json.loads(json.dumps(to_data(value)))


def test_a_slice_record_round_trips():
    record = a_slice(loss=Loss(1.5, "preempted", "gone"))
    assert from_data(SliceRecord, through_json(record)) == record


def test_a_run_record_round_trips_with_everything_set():
    attempt = an_attempt(cause=Cause.FAILED, ends=(WorkerEnd(0, 1), WorkerEnd(1, None, 9)))
    run = a_run(
        attempt=attempt,
        variables={"A": "ü\n$x"},
        environment=EnvironmentRef("demo", "1" * 64),
        workers=(0, 1),
    )
    assert from_data(RunRecord, through_json(run)) == run


def test_keys_of_a_newer_version_are_passed_over():
    data = through_json(a_slice())
    assert from_data(SliceRecord, {**data, "added_later": 1}) == a_slice()


def test_a_missing_field_without_default_is_named():
    data = through_json(a_slice())
    del data["spec"]["zone"]
    with pytest.raises(ValueError, match=r"`zone` - at `\$.spec`"):
        from_data(SliceRecord, data)
