"""A mount as it is typed."""

from __future__ import annotations

import pytest

from tpuctl.errors import ConflictError, UsageError
from tpuctl.model.refs import MountRef
from tpuctl.mounts.spec import (
    MountOptions,
    Options,
    check_together,
    check_unused,
    check_variables,
    is_asked,
    merge_mounts,
    options_said,
    parse_mount,
    parse_option,
    parse_options,
    parse_ttl,
    parse_words,
    ttl_options,
    typed_mount,
)

PROFILES = ("checkpoint", "train")


def parse(text: str) -> MountRef:
    return parse_mount(text, PROFILES, "train")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("gs://data:/mnt/data", MountRef("data", "/mnt/data", "train")),
        ("gs://data:/mnt/data:", MountRef("data", "/mnt/data", "train")),
        ("gs://data/a/b/:/mnt/data", MountRef("data", "/mnt/data", "train", "a/b")),
        ("gs://data:/home/ada/ckpt:checkpoint", MountRef("data", "/home/ada/ckpt", "checkpoint")),
        ("gs://a.b_c-d/x y:/data", MountRef("a.b_c-d", "/data", "train", "x y")),
        (
            "gs://data:/mnt/data,ttl=5,cache-size=3,implicit-dirs,write:create-empty-file=true,read-only",
            MountRef(
                "data",
                "/mnt/data",
                "train",
                options={
                    **ttl_options(5),
                    "implicit-dirs": "true",
                    "file-cache.max-size-mb": "3072",
                    "write.create-empty-file": "true",
                },
                read_only=True,
            ),
        ),
        ("gs://far:/mnt/far,cross-region", MountRef("far", "/mnt/far", "train", cross_region=True)),
    ],
)
def test_what_can_be_said(text: str, wanted: MountRef) -> None:
    assert parse(text) == wanted
    assert parse(typed_mount(wanted)) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "data:/mnt/data",
            "gs://data",
            "gs://data:mnt",
            "gs://:/mnt/x",
            "gs://Data:/mnt/x",
            "gs://b:/mnt/x",
        ),
        *("gs://ab/../c:/mnt/x", "gs://a:/mnt/x", "gs://bucket:/mnt/x/", "gs://bucket:/mnt/../etc"),
        *(
            "gs://bucket:/",
            "gs://bucket:/mnt",
            "gs://bucket:/usr/share/x",
            "gs://bucket:/tmp",
            "gs://bucket:/a b",
        ),
        *("gs://bucket:/mnt/x:fast", "gs://bucket:/mnt/x:train:ro"),
    ],
)
def test_what_cannot_be_said(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(text)
    assert refused.value.hint


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("60", 60), ("forever", -1)])
def test_times_to_live(text: str, seconds: int) -> None:
    assert parse_ttl(text) == seconds
    assert ttl_options(seconds)["metadata-cache.ttl-secs"] == str(seconds)


@pytest.mark.parametrize("text", ["", "-1", "1m", "1.5", "never", "9" * 12])
def test_what_is_no_time_to_live(text: str) -> None:
    with pytest.raises(UsageError, match="no number of seconds"):
        parse_ttl(text)


def test_options_are_by_the_keys_of_the_configuration_file() -> None:
    assert parse_option("metadata-cache:ttl-secs=30") == ("metadata-cache.ttl-secs", "30")
    assert parse_option("only-dir=a=b") == ("only-dir", "a=b")
    for text in ("ttl", "=3"):
        with pytest.raises(UsageError):
            parse_option(text)


def test_a_path_has_one_mount() -> None:
    one, two, three = parse("gs://one:/mnt/a"), parse("gs://two:/mnt/a"), parse("gs://one:/mnt/b")
    assert merge_mounts((one, three), (two,)) == (two, three)
    assert merge_mounts((one,), (three,)) == (one, three)
    assert is_asked((one, three), one)
    assert not is_asked((one, three), two)


def test_another_folder_takes_no_path_that_has_a_mount() -> None:
    known = (parse("gs://one/a:/mnt/a"), parse("gs://one:/mnt/b"))
    check_unused(known, (parse("gs://one/a:/mnt/a:checkpoint,ttl=9"), parse("gs://two:/mnt/c")))
    for text in ("gs://one:/mnt/a", "gs://two/a:/mnt/a"):
        with pytest.raises(ConflictError, match="gs://one/a is mounted at /mnt/a") as refused:
            check_unused(known, (parse(text),))
        assert "tpuctl mount rm /mnt/a" in (refused.value.hint or "")


def test_what_was_said_once_need_not_be_said_again() -> None:
    plain = parse("gs://one:/mnt/a")
    told = MountRef("one", "/mnt/a", "train", options={"implicit-dirs": "false"}, read_only=True)
    assert is_asked((told,), plain)
    assert not is_asked((plain,), told)


@pytest.mark.parametrize(
    ("paths", "others"),
    [
        (("/mnt/a", "/mnt/a/b"), ()),
        (("/mnt/a/b", "/mnt/a"), ()),
        (("/mnt/a",), ("/mnt/a",)),
        (("/mnt/a/b",), ("/mnt/a",)),
    ],
)
def test_no_mount_inside_another_thing(paths: tuple[str, ...], others: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        check_together(tuple(parse(f"gs://one:{path}") for path in paths), others)


def test_mounts_beside_each_other() -> None:
    check_together((parse("gs://one:/mnt/a"), parse("gs://one:/mnt/ab")), ("/mnt/b",))


def test_the_cache_of_hugging_face_is_not_on_a_mount() -> None:
    refs = (parse("gs://one:/mnt/a"),)
    check_variables({"HF_HOME": "/mnt/ab", "OTHER": "/mnt/a"}, refs)
    for home in ("/mnt/a", "/mnt/a/hf"):
        with pytest.raises(UsageError, match="symbolic links"):
            check_variables({"HF_HOME": home}, refs)


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("ttl=30", {**ttl_options(30)}),
        ("uid=7,file-mode=600", {"file-system.uid": "7", "file-system.file-mode": "600"}),
        (
            "implicit-dirs=false,cache-dir=/c,cache-size=2",
            {"implicit-dirs": "false", "cache-dir": "/c", "file-cache.max-size-mb": "2048"},
        ),
        ("ttl=30,metadata-cache:ttl-secs=9", {**ttl_options(30), "metadata-cache.ttl-secs": "9"}),
    ],
)
def test_options_behind_the_profile_are_those_of_the_flags(words: str, keys: dict[str, str]) -> None:
    for text in (f"gs://data:/mnt/data:train,{words}", f"gs://data:/mnt/data,{words}"):
        assert parse(text) == MountRef("data", "/mnt/data", "train", options=keys)
    assert options_said(dict(word.split("=") for word in words.replace(":", ".").split(","))).keys == keys


def test_flags_are_the_same_options() -> None:
    flags = MountOptions(
        ttl="0", uid=7, implicit_dirs=False, cache_dir="/C", cache_size=2, opt={"write.x": "A"}
    )
    words = ["ttl=0", "uid=7", "implicit-dirs=false", "cache-dir=/C", "cache-size=2", "write:x=A"]
    assert parse_options(flags) == parse_words(words)
    assert parse_options(MountOptions()) == Options()
    assert parse_options(MountOptions(read_only=True, cross_region=True)) == Options(
        {}, read_only=True, cross_region=True
    )


def test_what_is_said_with_flags_counts_over_what_stands_behind_the_profile() -> None:
    found = parse_mount(
        "gs://data:/mnt/data,ttl=30,cross-region", PROFILES, "train", options_said({"ttl": "0"})
    )
    assert (found.options["metadata-cache.ttl-secs"], found.cross_region) == ("0", True)
    assert not found.read_only
    for word, read_only in (("read-only", True), ("read-only=true", True), ("read-only=false", False)):
        assert parse_mount(f"gs://data:/mnt/data,{word}", PROFILES, "train").read_only is read_only


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ttl=soon", "no number of seconds"),
        ("ttl", "is no option of a mount"),
        ("slow", "is no option of a mount"),
        ("cache-dir=/c", "without a limit"),
        ("cache-dir=c,cache-size=1", "no folder of a host"),
        ("cache-size=all", "no number of GiB"),
        ("read-only=yes", "read-only=yes is neither true nor false"),
        ("read-only=True", "read-only=True is neither"),
        ("cross-region=1", "cross-region=1 is neither"),
    ],
)
def test_options_that_cannot_be(words: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        parse(f"gs://data:/mnt/data:train,{words}")
    assert refused.value.hint
