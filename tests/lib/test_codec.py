"""Records survive the store."""

from __future__ import annotations

import json

import pytest

from tests.support.builders import a_run, a_slice, an_attempt
from tpuctl.engine.ports import Document
from tpuctl.errors import DamagedRecordError
from tpuctl.lib.codec import from_data, parse_json, to_data
from tpuctl.model.attempts import Cause, WorkerEnd
from tpuctl.model.records import Loss, RunRecord, SliceRecord
from tpuctl.model.refs import EnvironmentRef
from tpuctl.state.repository import decode


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


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("owner",), 5, r"Expected `str`, got `int` - at `\$.owner`"),
        (("spec", "hosts"), "two", r"Expected `int`, got `str` - at `\$.spec.hosts`"),
        (("state",), "asleep", r"Invalid enum value 'asleep' - at `\$.state`"),
        (("incarnation",), [], r"Expected `object \| null`, got `array` - at `\$.incarnation`"),
    ],
)
def test_a_value_of_another_kind_names_the_record_the_field_and_what_to_do(path, value, said):
    data = through_json(a_slice())
    place = data
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(
        DamagedRecordError, match=f"the record slices/big in the store is damaged: {said}"
    ) as found:
        decode(SliceRecord, Document("slices/big", 1, data))
    assert found.value.hint == "bring it back from a backup of the store, or `tpuctl store forget slices/big`"


@pytest.mark.parametrize(
    "text",
    [
        "[NaN, Infinity, -Infinity, 1e400, -0, -0.0, 1E5, 0.1]",
        "[123456789012345678901234567890, -9223372036854775809, 18446744073709551616, 1.7976931348623157e308]",
        '"\\ud800 \\u0000 \\u00e4 é"',
        '{"a": 1, "a": 2, "": {}}',
        "null",
        " [true]\n",
    ],
)
def test_json_says_what_the_standard_library_reads(text):
    for content in (text, text.encode(), text.encode("utf-16")):
        found, meant = parse_json(content), json.loads(content)
        assert repr(found) == repr(meant)


@pytest.mark.parametrize(
    "text", ["", "{", "[1,]", "{'a': 1}", '"\t"', "nul", "[1] x", "01", '"\\x"', "\ufeff[]"]
)
def test_json_that_is_none_is_refused_with_the_place(text):
    with pytest.raises(ValueError, match=r"line 1|BOM"):
        parse_json(text)
