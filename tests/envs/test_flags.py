"""Flags of an environment, asked of the libtpu that it pins."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.cache import cached
from tests.support.memory.services import MemoryPlace
from tests.support.soak import soak
from tpuctl.engine.events import Warn
from tpuctl.envs.flags import (
    NO_FLAG,
    FlagCheck,
    RefusedFlag,
    check_flags,
    parse_answer,
    probe_library,
    unpack_library,
)
from tpuctl.envs.load import read_environment, shipped_names
from tpuctl.envs.pinned import PinnedEnvironment
from tpuctl.envs.presets import parse_flag_profiles
from tpuctl.envs.resolve import resolve_environment
from tpuctl.envs.rules import required_versions
from tpuctl.envs.spec import Backend, EnvironmentSpec, Unmanaged
from tpuctl.model.shipped_files import load_flag_profiles

FLAGS = "--xla_tpu_a=1 --xla_tpu_b=x"


@pytest.mark.parametrize(
    ("status", "stdout", "stderr", "answer"),
    [
        pytest.param(0, "ACCEPTED\n", "WARNING: a line of libtpu\n", FlagCheck(), id="accepted"),
        pytest.param(
            1,
            "",
            "ERROR: Unknown command line flag 'xla_tpu_a'. Did you mean: xla_tpu_c, xla_tpu_d ?\n"
            "ERROR: Illegal value 'x' specified for flag 'xla_tpu_b'; Cannot parse it\n",
            FlagCheck(
                (
                    RefusedFlag("--xla_tpu_a=1", NO_FLAG, ("--xla_tpu_c", "--xla_tpu_d")),
                    RefusedFlag("--xla_tpu_b=x", "'x' is no value of it"),
                )
            ),
            id="each-with-its-reason",
        ),
        pytest.param(
            1,
            "",
            "",
            FlagCheck((RefusedFlag(FLAGS, "libtpu ends at once with these flags"),)),
            id="no-word",
        ),
        pytest.param(
            -11,
            "",
            "",
            FlagCheck(unknown="libtpu does not begin on this machine (status -11): it said nothing"),
            id="crash",
        ),
    ],
)
def test_what_libtpu_prints_is_an_answer(status: int, stdout: str, stderr: str, answer: FlagCheck) -> None:
    assert parse_answer(status, stdout, stderr, FLAGS) == answer


def test_a_line_for_a_person_has_the_names_that_are_alike() -> None:
    assert RefusedFlag("--a=1", NO_FLAG, ("--b", "--c")).said == (
        "--a=1: there is no such flag; did you mean --b or --c?"
    )


def test_a_library_that_does_not_load_here_says_nothing_of_flags(tmp_path: Path) -> None:
    (tmp_path / "libtpu.so").write_bytes(b"\x7fELF of another machine")
    answer = probe_library(tmp_path / "libtpu.so", FLAGS, "", tmp_path)
    assert answer.refused == ()
    assert "CANNOT LOAD" in answer.unknown


def test_flags_that_nothing_on_this_machine_can_check_are_said_to_be_unchecked() -> None:
    services = MemoryPlace().machine()
    unmanaged = Unmanaged("/mnt/venv", "a" * 64)
    spec = EnvironmentSpec("own", ("3.12",), unmanaged=unmanaged, libtpu_flags=("--xla_tpu_a=1",))
    check_flags(services, PinnedEnvironment(spec), lambda _: Path("/nowhere"))
    [told] = [event for event in services.events if isinstance(event, Warn)]
    assert "own: no libtpu of it is on this machine, so its flags are not checked" in told.text


def libtpu(version: str) -> Path:
    """The real library of a release, from the package index: 570 MB, unpacked once. A release never changes."""

    def fetch(folder: Path) -> None:
        spec = EnvironmentSpec("probe", ("3.12",), Backend.CPU, requirements=(f"libtpu=={version}",))
        (package,) = resolve_environment(spec).packages
        (wheel,) = package.wheels
        with tempfile.NamedTemporaryFile(dir=folder.parent) as packed:
            with urllib.request.urlopen(wheel.url, timeout=60) as answer:
                shutil.copyfileobj(answer, packed, 1 << 20)
            packed.flush()
            with open(packed.name, "rb") as file:
                assert hashlib.file_digest(file, "sha256").hexdigest() == wheel.sha256
            unpack_library(Path(packed.name), folder)

    return cached(f"libtpu-{version}", fetch) / "libtpu.so"


ALWAYS = "--xla_tpu_enable_async_collective_fusion=true --xla_tpu_use_enhanced_launch_barrier=false"
TO_0_0_36 = "--xla_tpu_autofdo_profile_dir=x"
TO_0_0_37 = "--xla_tpu_rematerialization_max_block_size=1"
NEVER = "--xla_tpu_enable_flash_attntion=false"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("version", "accepted", "refused"),
    [
        soak("0.0.21", f"{TO_0_0_36} {TO_0_0_37}", NEVER, id="0.0.21"),
        pytest.param("0.0.51", "", f"{TO_0_0_36} {TO_0_0_37} {NEVER}", id="0.0.51"),
        soak("0.0.37", TO_0_0_37, f"{TO_0_0_36} {NEVER}", id="0.0.37"),
        soak("0.0.41", "", f"{TO_0_0_36} {NEVER}", id="0.0.41"),
    ],
)
def test_a_real_libtpu_takes_its_own_flags_and_refuses_those_of_other_releases(
    tmp_path: Path, version: str, accepted: str, refused: str
) -> None:
    library = libtpu(version)
    taken = "--xla_disable_hlo_passes=fusion --xla_dump_to=/tmp/hlo"
    assert probe_library(library, f"{ALWAYS} {accepted}", taken, tmp_path) == FlagCheck()
    answer = probe_library(library, f"{ALWAYS} {refused}", f"{ALWAYS} --xla_dump_too=/tmp/hlo", tmp_path)
    assert [each.flag for each in answer.refused] == [
        *refused.split(),
        *ALWAYS.split(),
        "--xla_dump_too=/tmp/hlo",
    ]
    near = {each.flag: each.near for each in answer.refused}
    assert near[NEVER] == ("--xla_tpu_enable_flash_attention",)
    assert near["--xla_dump_too=/tmp/hlo"] == ("--xla_dump_to",)
    illegal = probe_library(library, "--xla_tpu_enable_flash_attention=maybe", "", tmp_path)
    assert [each.why for each in illegal.refused] == ["'maybe' is no value of it"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_several_who_ask_at_once_are_all_answered(tmp_path: Path) -> None:
    """Without ALLOW_MULTIPLE_LIBTPU_LOAD a libtpu takes whatever flags while another process begins."""
    library = libtpu("0.0.51")
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: probe_library(library, NEVER, "", tmp_path), range(16)))
    assert {each.refused[0].flag for each in answers} == {NEVER}


def pinned_libtpus() -> dict[str, list[EnvironmentSpec]]:
    """The shipped environments by the libtpu that they name."""
    found: dict[str, list[EnvironmentSpec]] = {}
    for name in shipped_names():
        spec = read_environment(name, Path("/nowhere")).spec
        version = required_versions(spec).get("libtpu")
        if version is not None:
            found.setdefault(version, []).append(spec)
    return found


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", pinned_libtpus())
def test_what_is_shipped_has_flags_that_its_libtpu_takes(tmp_path: Path, version: str) -> None:
    """And it takes those of each profile, so that an environment which is derived may name any."""
    library = libtpu(version)
    for spec in pinned_libtpus()[version]:
        if spec.libtpu_flags:
            assert probe_library(library, " ".join(spec.libtpu_flags), "", tmp_path) == FlagCheck(), spec.name
    for name, profile in parse_flag_profiles(load_flag_profiles()).items():
        assert probe_library(library, " ".join(profile.flags), "", tmp_path) == FlagCheck(), name
