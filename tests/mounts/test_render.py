"""Profiles, options and versions: the configuration of gcsfuse that each comes to."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from tpuctl.errors import UsageError
from tpuctl.model.facts import BucketPlace
from tpuctl.model.refs import MountRef
from tpuctl.model.shipped_files import load_mount_table
from tpuctl.mounts.follow import parse_ref
from tpuctl.mounts.render import (
    cache_of,
    check_ttl,
    command_line,
    digest_of,
    options_of,
    render_configuration,
    what_others_see,
)
from tpuctl.mounts.rules import MountRules
from tpuctl.mounts.spec import options_said, ttl_options

TABLE, FLAGS = load_mount_table()
RULES = MountRules(TABLE, FLAGS)
SUPPORTED = TABLE["gcsfuse"]["supported"]
TTLS = ("metadata-cache.ttl-secs", "metadata-cache.negative-ttl-secs", "file-system.kernel-list-cache-ttl-secs")


def ref(profile: str = "train", **more: Any) -> MountRef:
    return MountRef("data", "/mnt/data", profile, **more)


def configured(mount: MountRef, version: str = RULES.pinned) -> Any:
    return yaml.safe_load(render_configuration(options_of(RULES, mount, version)))


@pytest.mark.parametrize("version", SUPPORTED)
@pytest.mark.parametrize("profile", RULES.profiles)
def test_every_profile_is_known_to_every_version_and_names_every_ttl(profile: str, version: str) -> None:
    options = options_of(RULES, ref(profile), version)
    known = RULES.keys(version)
    assert set(options) <= set(known)
    assert set(TTLS) <= set(options)
    assert options["disable-autoconfig"] is True
    for key, value in options.items():
        kind = {"bool": bool, "int": int, "[]string": list}.get(known[key][1], str)
        assert type(value) is kind, key
    tree = yaml.safe_load(render_configuration(options))
    assert tree["metadata-cache"]["ttl-secs"] == TABLE["profiles"][profile]["options"][TTLS[0]]
    assert tree["file-system"]["fuse-options"] == ["allow_other"]


@pytest.mark.parametrize("name", RULES.profiles)
def test_every_profile_says_what_it_is_for_and_where_that_is_from(name: str) -> None:
    row = TABLE["profiles"][name]
    assert all(row[key] for key in ("for", "consistency", "cost"))
    assert set(row["source"].replace(" and ", " ").split()) <= set(TABLE["sources"])


def test_the_pinned_version_is_supported_and_has_no_known_defect() -> None:
    assert RULES.pinned in SUPPORTED
    assert set(SUPPORTED) == set(FLAGS["versions"])
    assert {version.split(".")[0] for version in SUPPORTED} == {"2", "3"}
    for version in SUPPORTED:
        RULES.check_version(version)


@pytest.mark.parametrize("version", ["3.0.0", "3.2.1", "3.4.0", "3.5.6", "3.11.2", "1.4.0"])
def test_versions_with_known_defects_are_refused(version: str) -> None:
    with pytest.raises(UsageError, match=f"gcsfuse {version} is not used"):
        RULES.check_version(version)


@pytest.mark.parametrize("version", ["3.11.3", "3.12.0", "2.12.2"])
def test_others_are_not(version: str) -> None:
    RULES.check_version(version)


def test_what_is_said_is_over_the_profile() -> None:
    said = {
        "metadata-cache.ttl-secs": "30",
        "implicit-dirs": "false",
        "file-system.uid": "7",
        "cache-dir": "/data/c",
    }
    tree = configured(ref(options=said, read_only=True, directory="a/b"))
    assert (tree["metadata-cache"]["ttl-secs"], tree["implicit-dirs"]) == (30, False)
    assert tree["file-system"]["fuse-options"] == ["allow_other", "ro"]
    assert (tree["only-dir"], tree["cache-dir"]) == ("a/b", "/data/c")
    assert command_line(ref(), {}) == [
        *("gcsfuse", "--config-file=gcsfuse.yaml", "--uid=$(id -u)", "--gid=$(id -g)", "data", "/mnt/data")
    ]
    assert "--uid=$(id -u)" not in command_line(ref(), {"file-system.uid": 7})


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("metadata-cache.ttl", "3", "has no option metadata-cache.ttl"),
        ("metadata-cache.ttl-secs", "soon", "not a value of type int"),
        ("implicit-dirs", "yes", "not a value of type bool"),
        ("file-system.file-mode", "999", "not a value of type octal"),
        ("gcs-retries.max-retry-sleep", "30", "not a value of type duration"),
        ("disable-autoconfig", "false", "tpuctl's own"),
        ("profile", "aiml-training", "tpuctl's own"),
    ],
)
def test_options_that_gcsfuse_does_not_have_are_refused_by_name(key: str, value: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        options_of(RULES, ref(options={key: value}), RULES.pinned)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        ("file-mode=9", {}, "file-mode=644"),
        ("uid=ada", {}, "uid=60"),
        ("metadata-cache:ttl-sec=9", {}, "metadata-cache:ttl-secs=…"),
        ("", {"file-mode": "9"}, "--file-mode 644"),
        ("", {"metadata-cache.ttl-secs": "soon"}, "--opt metadata-cache:ttl-secs=60"),
        ("", {"implicit-dirs": "yes"}, "--implicit-dirs"),
    ],
)
def test_the_hint_for_an_option_is_in_the_form_in_which_it_was_typed(
    words: str, said: dict[str, str], hint: str
) -> None:
    text = "gs://data:/mnt/data:train" + (f",{words}" if words else "")
    with pytest.raises(UsageError) as refused:
        parse_ref(RULES, text, options_said(said))
    assert refused.value.hint == hint


def test_an_option_of_a_later_version_is_refused_in_an_earlier_one() -> None:
    mount = ref(options={"read.enable-buffered-read": "true"})
    assert options_of(RULES, mount, "3.11.3")["read.enable-buffered-read"] is True
    with pytest.raises(UsageError, match=r"gcsfuse 2\.12\.2 has no option"):
        options_of(RULES, mount, "2.12.2")
    with pytest.raises(UsageError, match="not known here"):
        options_of(RULES, mount, "3.99.0")


@pytest.mark.parametrize(
    ("ttl_s", "first", "second"),
    [
        (0, "at once", "at once"),
        (60, "after 60 s", "after 5 s"),
        (2, "after 2 s", "after 2 s"),
        (-1, "never", "at once"),
    ],
)
def test_what_another_host_sees_is_said_in_two_sentences(ttl_s: int, first: str, second: str) -> None:
    said = what_others_see(options_of(RULES, ref(options=ttl_options(ttl_s)), RULES.pinned))
    changed, new = said.split(". ")
    assert first in changed
    assert second in new


def test_a_ttl_below_for_ever_is_none() -> None:
    with pytest.raises(UsageError, match="for ever"):
        check_ttl(options_of(RULES, ref(options={TTLS[0]: "-2"}), RULES.pinned))


def test_only_a_profile_with_a_cache_has_one() -> None:
    assert cache_of(options_of(RULES, ref(), RULES.pinned)) is None
    assert cache_of(options_of(RULES, ref("dataset"), RULES.pinned)) == RULES.cache


def test_another_configuration_has_another_digest() -> None:
    plain, other = ref(), ref(options=ttl_options(7))
    texts = [render_configuration(options_of(RULES, each, RULES.pinned)) for each in (plain, other)]
    assert (
        len({digest_of(plain, texts[0]), digest_of(plain, texts[1]), digest_of(ref(program="1"), texts[0])})
        == 3
    )


@pytest.mark.parametrize(
    ("place", "cost"),
    [
        (BucketPlace("US-CENTRAL2", "region"), ""),
        (BucketPlace("US", "multi-region"), "20 USD per TB read, 0.01 USD per 1,000 listings and writes"),
        (
            BucketPlace("US", "dual-region", ("us-central2", "us-east1")),
            "reading costs nothing, 0.01 USD per 1,000 listings and writes",
        ),
    ],
)
def test_a_bucket_near_the_slice(place: BucketPlace, cost: str) -> None:
    said = RULES.check_location(ref(), place, "us-central2-b")
    assert cost in said
    assert bool(said) is bool(cost)


@pytest.mark.parametrize("location", ["EUROPE-WEST4", "EU", "NAM4"])
def test_a_bucket_elsewhere_is_refused_with_its_cost_unless_that_is_meant(location: str) -> None:
    place = BucketPlace(location, "region")
    with pytest.raises(UsageError, match="USD or more per TB") as refused:
        RULES.check_location(ref(), place, "us-central2-b")
    assert ",cross-region" in (refused.value.hint or "")
    assert "20 USD or more" in RULES.check_location(replace(ref(), cross_region=True), place, "us-central2-b")


def test_the_table_is_not_changed_by_those_who_read_it() -> None:
    before = copy.deepcopy(TABLE)
    options_of(RULES, ref("dataset", options={"implicit-dirs": "false"}), RULES.pinned)
    assert before == TABLE
