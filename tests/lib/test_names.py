from __future__ import annotations

import re

import pytest

from tpuctl.errors import UsageError
from tpuctl.lib import names as naming


@pytest.mark.parametrize("name", ["a", "big", "v4-32", "a-0", "a" * 50])
def test_slice_names_the_api_accepts(name):
    assert naming.check_slice_name(name) == name
    assert len(naming.cloud_name(name, 999_999)) <= naming.MAX_CLOUD_NAME


@pytest.mark.parametrize(
    "name", ["", "Big", "3big", "big-", "-big", "b_g", "big\n", "bïg", "a b", "a;b", "a" * 51]
)
def test_slice_names_the_api_refuses(name):
    with pytest.raises(UsageError) as caught:
        naming.check_slice_name(name)
    assert repr(name) in caught.value.message
    assert caught.value.hint


def test_a_cloud_name_is_slice_and_incarnation():
    assert naming.cloud_name("big", 3) == "big-3"
    assert naming.parse_cloud_name("v4-32-1") == ("v4-32", 1)
    for foreign in ("big", "big-", "big-03", "big-0", "Big-3", "-3", "big-٣"):
        assert naming.parse_cloud_name(foreign) is None
    with pytest.raises(ValueError):
        naming.cloud_name("big", 0)


@pytest.mark.parametrize("text", ["Ada.Lovelace@example.com", "x" * 100, "ünï", "", "a_b-c"])
def test_any_text_becomes_a_label_value(text):
    assert re.fullmatch(r"[-_a-z0-9]{0,63}", naming.label_value(text))


def test_a_valid_label_value_stays():
    assert naming.label_value("ada_l-1") == "ada_l-1"


@pytest.mark.parametrize(
    ("zone", "region"),
    [("us-central2-b", "us-central2"), ("us-central1-ai1a", "us-central1"), ("asia-east1-c", "asia-east1")],
)
def test_zones_and_their_regions(zone, region):
    assert naming.check_zone_name(zone) == zone
    assert naming.region_of(zone) == region


@pytest.mark.parametrize(
    "zone", ["", "-", "us-central2", "US-CENTRAL2-B", "us-central2-b/x", "us-central2-b\n"]
)
def test_words_that_are_no_zone(zone):
    with pytest.raises(UsageError):
        naming.check_zone_name(zone)


def test_project_ids():
    for project in ("my-project", "example.com:my-project", "sim-project"):
        assert naming.check_project(project) == project
    for project in ("", "short", "My-Project", "a/b-project", "x" * 31, "project-", "my-project\n"):
        with pytest.raises(UsageError):
            naming.check_project(project)


def test_run_ids_become_directories():
    assert naming.check_run_id("r-20260101-abc") == "r-20260101-abc"
    for run_id in ("", "..", "a/b", "A", "-a", "a" * 64):
        with pytest.raises(UsageError):
            naming.check_run_id(run_id)


def test_bucket_prefixes():
    assert naming.check_bucket_uri("gs://my-bucket/a b/") == "gs://my-bucket/a b"
    for uri in ("", "my-bucket", "s3://b/x", "gs://", "gs:///x", "gs://A/x"):
        with pytest.raises(UsageError):
            naming.check_bucket_uri(uri)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("LR=0.1", ("LR", "0.1")),
        ("_A=", ("_A", "")),
        ("A=b=c", ("A", "b=c")),
        ("A= '\"$x\n é", ("A", " '\"$x\n é")),
    ],
)
def test_variables(word, expected):
    assert naming.parse_var(word) == expected


@pytest.mark.parametrize("word", ["LR", "=1", "1A=2", "A-B=1", "A B=1", "É=1", "TPUCTL_X=1", "A=\0"])
def test_bad_variables_are_named(word):
    with pytest.raises(UsageError) as caught:
        naming.parse_var(word)
    assert word.partition("=")[0] in caught.value.message
    assert "--var NAME=VALUE" in caught.value.hint


def test_secrets_are_references():
    assert naming.parse_secret("KEY=env:WANDB") == ("KEY", "env:WANDB")
    assert naming.parse_secret("KEY=file:/a b/c:d") == ("KEY", "file:/a b/c:d")


@pytest.mark.parametrize(
    "word", ["KEY", "KEY=s3cr3t", "KEY=env:", "KEY=env:A-B", "KEY=file:", "1=env:A", "KEY=cmd:x"]
)
def test_bad_secrets_are_refused_without_showing_a_value(word):
    with pytest.raises(UsageError) as caught:
        naming.parse_secret(word)
    assert "s3cr3t" not in caught.value.message
    assert "env:VARIABLE" in caught.value.hint
