"""Presets: keys of an environment file about the runs in it; what wins, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.support.environments import make_pinned
from tpuctl.config.settings import resolve
from tpuctl.envs.load import read_environment, shipped_names
from tpuctl.envs.pinned import PinnedEnvironment, environment_key, parse_frozen
from tpuctl.envs.presets import (
    OWN_DIRECTORY,
    FlagProfile,
    describe_preset,
    expand_profiles,
    parse_flag_profiles,
    preset_rows,
    profile_complaints,
)
from tpuctl.envs.spec import Backend, EnvironmentSpec, run_variables
from tpuctl.envs.write import derive, render_environment
from tpuctl.errors import BadConfigError, UsageError
from tpuctl.model.run_spec import RunRequest, RunSpec
from tpuctl.model.shipped_files import load_accelerators, load_flag_profiles
from tpuctl.runs.preset import with_preset
from tpuctl.runs.submit import resolve_run

PROFILES = parse_flag_profiles(load_flag_profiles())
FAST, SLOW = ("--xla_a=1", "--xla_b=1"), ("--xla_a=2",)
TABLE = {
    "fast": FlagProfile("w", FAST, "s"),
    "also": FlagProfile("w", ("--xla_b=1", "--xla_c=1"), "s"),
    "slow": FlagProfile("w", SLOW, "s"),
    "new": FlagProfile("w", ("--xla_d=1",), "s", ("v6e", "tpu7x")),
}
STEP, LOSS = r"step (\d+)", r"step (?P<step>\d+) loss (?P<loss>\S+)"
GOOD = 'name: e\nbackend: jax\npython: "3.12"\nrequirements: [jax==0.12.0.1, libtpu==0.0.50.1]\n'


def spec(**keys: Any) -> EnvironmentSpec:
    return EnvironmentSpec("e", ("3.12",), Backend.JAX, **keys)


@pytest.mark.parametrize(
    ("keys", "flags"),
    [
        ({}, ()),
        ({"flag_profiles": ("fast",)}, FAST),
        ({"flag_profiles": ("fast", "also")}, (*FAST, "--xla_c=1")),
        ({"flag_profiles": ("fast",), "libtpu_flags": ("--xla_a=9",)}, ("--xla_b=1", "--xla_a=9")),
        ({"flag_profiles": ("fast", "slow"), "libtpu_flags": ("--xla_a=9",)}, ("--xla_b=1", "--xla_a=9")),
    ],
    ids=["none", "one", "two-that-share", "own-flags-win", "own-flags-settle-a-conflict"],
)
def test_profiles_become_flags_and_those_of_the_file_win(
    keys: Mapping[str, Any], flags: tuple[str, ...]
) -> None:
    found = expand_profiles(TABLE, spec(**keys))
    assert found.libtpu_flags == flags
    assert profile_complaints(TABLE, spec(**keys)) == []
    assert expand_profiles(TABLE, found) == found


@pytest.mark.parametrize(
    ("keys", "said", "hint"),
    [
        (
            {"flag_profiles": ("fats",)},
            "'fats' is no flag profile; did you mean 'fast'?",
            "one of: fast, also, slow, new",
        ),
        ({"flag_profiles": ("fast", "fast")}, "flag profile fast is named twice", "name it once"),
        (
            {"flag_profiles": ("fast", "slow")},
            "flag profiles fast and slow exclude each other: --xla_a=1 and --xla_a=2",
            "keep fast or slow",
        ),
        (
            {"flag_profiles": ("new",), "generations": ("v5e", "v6e")},
            "flag profile new is for v6e, tpu7x, and the environment is for v5e",
            "generations: [v6e, tpu7x], or without new",
        ),
        (
            {"flag_profiles": ("new",)},
            "flag profile new is for v6e, tpu7x, and the environment is for any",
            "generations: [v6e, tpu7x], or without new",
        ),
    ],
    ids=["unknown", "twice", "conflict", "another-generation", "any-generation"],
)
def test_profiles_that_cannot_be_are_refused(keys: Mapping[str, Any], said: str, hint: str) -> None:
    [found] = profile_complaints(TABLE, spec(**keys))
    assert (found.key, found.message, found.hint) == ("flag_profiles", said, hint)


def test_the_sparse_cores_take_no_collective_that_is_fused_already() -> None:
    for kind in ("all-gather", "all-reduce"):
        both = spec(flag_profiles=(f"async-{kind}", f"sparsecore-{kind}"), generations=("v6e",))
        assert [each.hint for each in profile_complaints(PROFILES, both)] == [
            f"keep async-{kind} or sparsecore-{kind}"
        ]
    others = ("async-all-gather", "sparsecore-all-reduce", "sparsecore-reduce-scatter", "host-offload")
    assert profile_complaints(PROFILES, spec(flag_profiles=others, generations=("v6e",))) == []


def test_profiles_name_generations_that_exist_and_give_no_flag_twice() -> None:
    known = set(load_accelerators().generations)
    for name, profile in PROFILES.items():
        assert known.issuperset(profile.generations), name
        names = [flag.partition("=")[0] for flag in profile.flags]
        assert len(set(names)) == len(names), name


@pytest.mark.parametrize(
    ("more", "line", "said"),
    [
        ("flag_profiles: [vmem-dens]", 5, "'vmem-dens' is no flag profile; did you mean 'vmem-dense'?"),
        (
            "generations: [v6e]\nflag_profiles: [vmem-dense, vmem-moe]",
            6,
            "vmem-dense and vmem-moe exclude each",
        ),
        (
            "generations: [v4]\nflag_profiles: [vmem-dense]",
            6,
            "vmem-dense is for v6e, and the environment is for v4",
        ),
        (
            "flag_profile: [vmem-dense]",
            5,
            "unknown key 'flag_profile' in environment; did you mean 'flag_profiles'?",
        ),
        ("per: core", 5, "'core' is not known"),
        ("progress: step", 5, "'step' has no group for the step"),
        ("progress: 'step ('", 5, "is no regular expression"),
        ("exclude: ['a b']", 5, "'a b' is not the name of a package"),
        (
            "flag_profiles: [host-offload]\nvariables: {LIBTPU_INIT_ARGS: --a=1}",
            5,
            "flag_profiles and the variable LIBTPU_INIT_ARGS say the same",
        ),
    ],
)
def test_a_bad_key_of_a_file_is_refused_with_its_line(tmp_path: Path, more: str, line: int, said: str) -> None:
    (tmp_path / "e.yaml").write_text(GOOD + more)
    with pytest.raises(BadConfigError) as caught:
        read_environment("e", tmp_path)
    [problem] = caught.value.details["problems"]
    assert (problem["line"], said in problem["message"]) == (line, True), problem
    assert problem["hint"] or "unknown key" in said


def test_a_file_that_is_derived_keeps_the_names_and_not_their_flags(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(GOOD + "flag_profiles: [host-offload]\n")
    found = read_environment("e", tmp_path)
    assert found.spec.libtpu_flags == PROFILES["host-offload"].flags
    assert found.written is not None
    text = render_environment(derive(found.written, "f", versions=["jax==0.12.0"], files=[]))
    assert "flag_profiles:\n  - host-offload\n" in text
    assert "libtpu_flags" not in text


def test_what_a_run_keeps_has_the_flags_and_does_not_read_the_table_again() -> None:
    pinned = make_pinned({"six": ("1.17.0", "a" * 64)}, per="chip", flag_profiles=("host-offload",))
    pinned = replace(pinned, spec=expand_profiles(PROFILES, pinned.spec))
    again = parse_frozen(pinned.content)
    assert again.spec == pinned.spec
    assert run_variables(again.spec)["LIBTPU_INIT_ARGS"] == " ".join(PROFILES["host-offload"].flags)
    plain = replace(pinned, spec=structs.replace(pinned.spec, libtpu_flags=(), flag_profiles=()))
    assert environment_key(plain, "3.11") != environment_key(pinned, "3.11")


def test_an_environment_without_these_keys_is_kept_as_before_there_were_any() -> None:
    content = make_pinned({"six": ("1.17.0", "a" * 64)}).content
    assert not [
        key for key in ("exclude", "flag_profiles", "per", "progress") if f'"{key}"'.encode() in content
    ]


@pytest.mark.parametrize(
    ("keys", "said", "per", "progress"),
    [
        ({}, {}, "host", ""),
        ({"per": "chip", "progress": LOSS}, {}, "chip", LOSS),
        ({"per": "chip", "progress": LOSS}, {"per": "host"}, "host", LOSS),
        ({"per": "chip", "progress": LOSS}, {"progress": STEP}, "chip", STEP),
        ({"per": "chip", "progress": LOSS}, {"progress": ""}, "chip", ""),
        ({"progress": LOSS}, {"on_nan": "stop", "per": "chip"}, "chip", LOSS),
    ],
    ids=["nothing", "environment", "per-of-run", "progress-of-run", "no-progress-of-run", "both"],
)
def test_what_run_says_wins_over_its_environment(
    keys: Mapping[str, str], said: Mapping[str, str], per: str, progress: str
) -> None:
    found = run_in(spec(**keys), RunRequest(script="x.py", **said))
    assert (found.per, found.progress) == (per, progress)


def run_in(environment: EnvironmentSpec, request: RunRequest) -> RunSpec:
    pinned = PinnedEnvironment(environment)
    return resolve_run(request, resolve([], Path("/nowhere")), "big", 1, ".", pinned)


def test_a_number_that_nobody_looks_for_stops_no_run() -> None:
    with pytest.raises(UsageError, match="--on-nan stop has no number to look at"):
        run_in(spec(), RunRequest(script="x.py", on_nan="stop"))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"worker": "0", "alone": True}, "--per chip and --worker exclude each other"),
        ({"chips": "1"}, "--per chip starts a process on every chip of a host"),
        ({"var": {"XLA_USE_SPMD": "1"}}, "XLA_USE_SPMD=1 wants one process for each host"),
    ],
)
def test_a_launch_mode_that_does_not_go_with_a_run_is_named_with_its_environment(
    said: Mapping[str, Any], words: str
) -> None:
    pinned = PinnedEnvironment(spec(per="chip"))
    with pytest.raises(UsageError) as caught:
        with_preset(RunRequest(script="x.py", **said), pinned)
    assert caught.value.message.startswith("environment e has per: chip, and ")
    assert words in caught.value.message
    assert caught.value.hint == "--per host, or another environment: tpuctl env ls"


def test_a_manifest_says_what_each_key_came_to_and_who_had_the_last_word() -> None:
    whole = expand_profiles(
        TABLE, spec(per="chip", flag_profiles=("fast",), progress=STEP, compile_cache="disk")
    )
    run = run_in(whole, RunRequest(script="x.py"))
    assert [(row.key, row.sets, row.by) for row in preset_rows(whole, run, {})] == [
        ("per", "--per chip", "environment"),
        ("flag_profiles", "LIBTPU_INIT_ARGS=--xla_a=1 --xla_b=1", "environment"),
        ("compile_cache", f"JAX_COMPILATION_CACHE_DIR={OWN_DIRECTORY}", "environment"),
        ("progress", r"--progress 'step (\d+)'", "environment"),
    ]
    given = {"LIBTPU_INIT_ARGS": "--xla_z=1", "JAX_COMPILATION_CACHE_DIR": "/tmp/c"}
    run = run_in(whole, RunRequest(script="x.py", per="host", progress=LOSS, var=given))
    assert [(row.key, row.value, row.sets, row.by) for row in preset_rows(whole, run, given)] == [
        ("per", "chip", "--per host", "--per"),
        ("flag_profiles", "fast", "LIBTPU_INIT_ARGS=--xla_z=1", "--var"),
        ("compile_cache", "disk", "JAX_COMPILATION_CACHE_DIR=/tmp/c", "--var"),
        ("progress", STEP, f"--progress '{LOSS}'", "--progress"),
    ]
    assert preset_rows(spec(), run, given) == []


def test_a_list_has_the_preset_in_a_few_words() -> None:
    assert describe_preset(spec(per="chip", flag_profiles=("fast",), progress=STEP, compile_cache="disk")) == [
        "per chip",
        "fast",
        "cache disk",
        "progress",
    ]


def test_profiles_of_shipped_environments_go_together() -> None:
    used = [name for name in shipped_names() if read_environment(name, Path("/nowhere")).spec.flag_profiles]
    assert used
