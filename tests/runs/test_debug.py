"""`--debug`: the variables of each framework and version, what is refused, and a folder for each process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tpuctl.envs.pinned import PinnedEnvironment
from tpuctl.envs.spec import Backend, EnvironmentSpec
from tpuctl.errors import UsageError
from tpuctl.model.shipped_files import load_debug_profiles
from tpuctl.runs.debug import DebugVariables, check_debug, parse_profiles, render_debug
from tpuctl.runs.host_parts import HOST_PARTS, large_parts

PROFILES = parse_profiles(load_debug_profiles())
AGENT = Path(__file__).resolve().parents[2] / "tpuctl" / "agent"
OLD_JAX = {"jax": "0.4.30", "jaxlib": "0.4.30"}
JAX = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}
TORCH = {"torch": "2.9.0", "torch-xla": "2.9.0+cpu", "libtpu": "0.0.21"}
IR = {"JAX_DUMP_IR_TO": "{dumps}/ir", "JAX_ENABLE_COMPILATION_CACHE": "false"}
DUMP = {"XLA_FLAGS": ("--xla_dump_to={dumps}/hlo",)}
LOGS = {
    "TPU_MIN_LOG_LEVEL": "0",
    "TPU_STDERR_LOG_LEVEL": "0",
    "TF_CPP_MIN_LOG_LEVEL": "0",
    "TPU_VMODULE": "tpu_configuration_ops_impl=3",
}
SDC = (
    "--xla_tpu_enable_sdc_checker=true",
    "--xla_tpu_sdc_check_halt_on_detection=true",
    "--xla_tpu_sdc_check_repeat_count=5",
    "--xla_tpu_sdc_replicate_llo=true",
)
CASES: list[tuple[str, tuple[str, ...], dict[str, str] | None, DebugVariables]] = [
    ("an old JAX", ("hlo",), OLD_JAX, DebugVariables(IR, DUMP, recompile=True)),
    (
        "a new JAX",
        ("hlo",),
        JAX,
        DebugVariables({**IR, "JAX_DUMP_IR_MODES": "stablehlo,jaxpr"}, DUMP, recompile=True),
    ),
    (
        "PyTorch/XLA",
        ("hlo",),
        TORCH,
        DebugVariables({"XLA_IR_DEBUG": "1", "XLA_HLO_DEBUG": "1"}, DUMP, recompile=True),
    ),
    (
        "compiles of JAX on the CPU",
        ("xla",),
        OLD_JAX,
        DebugVariables({"JAX_LOG_COMPILES": "1", "JAX_EXPLAIN_CACHE_MISSES": "1"}),
    ),
    (
        "compiles of JAX with libtpu",
        ("xla",),
        JAX,
        DebugVariables({"JAX_LOG_COMPILES": "1", "JAX_EXPLAIN_CACHE_MISSES": "1", **LOGS}),
    ),
    (
        "compiles of PyTorch/XLA",
        ("xla",),
        TORCH,
        DebugVariables(
            {
                "PT_XLA_DEBUG_LEVEL": "2",
                "PT_XLA_DEBUG_FILE": "{dumps}/pt_xla_debug.txt",
                "XLA_METRICS_FILE": "{dumps}/metrics.txt",
                **LOGS,
            }
        ),
    ),
    ("two words", ("nans", "sdc"), JAX, DebugVariables({"JAX_DEBUG_NANS": "1"}, {"LIBTPU_INIT_ARGS": SDC})),
    (
        "nobody knows the packages",
        ("nans", "sdc"),
        None,
        DebugVariables({"JAX_DEBUG_NANS": "1"}, {"LIBTPU_INIT_ARGS": SDC}),
    ),
    ("no word", (), JAX, DebugVariables()),
]


@pytest.mark.parametrize(("asked", "packages", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_what_is_set_follows_from_package_and_version(asked, packages, expected):
    assert render_debug(PROFILES, asked, packages) == expected


def environment(**packages: str) -> PinnedEnvironment:
    """A locked one; `lab` is its name."""
    wheel = f'{{url = "https://x/any-1-py3-none-any.whl", hashes = {{sha256 = "{"0" * 64}"}}}}'
    rows = "".join(
        f'[[packages]]\nname = "{name}"\nversion = "{version}"\nwheels = [{wheel}]\n'
        for name, version in packages.items()
    )
    spec = EnvironmentSpec("lab", ("3.11",), backend=Backend.CPU, xla_flags=("--xla_cpu_use_acl=false",))
    return PinnedEnvironment(spec, lock=f'lock-version = "1.0"\ncreated-by = "test"\n{rows}')


REFUSED: list[tuple[tuple[str, ...], dict[str, str], list[str], str]] = [
    (("hlos",), {}, [], "--debug 'hlos' is unknown"),
    (("nans", "nans"), {}, [], "--debug nans is given twice"),
    (("sdc",), {}, [], "--debug sdc is for libtpu, and environment lab has none"),
    (
        ("nans",),
        {"JAX_DEBUG_NANS": "0"},
        [],
        "--debug sets JAX_DEBUG_NANS=1, and the run has it already, as '0'",
    ),
    (("nans",), {}, ["JAX_DEBUG_NANS"], "and the run has it already, as a secret"),
    (
        ("hlo",),
        {"XLA_FLAGS": "--a=1 --xla_dump_to=/tmp"},
        [],
        "--debug adds --xla_dump_to to XLA_FLAGS, and the run has --xla_dump_to=/tmp there already",
    ),
    (("hlo",), {}, ["XLA_FLAGS"], "to XLA_FLAGS, which is a secret of the run"),
]


@pytest.mark.parametrize(("asked", "given", "secrets", "words"), REFUSED, ids=[row[-1] for row in REFUSED])
def test_what_does_nothing_or_contradicts_is_refused(asked, given, secrets, words):
    with pytest.raises(UsageError) as caught:
        check_debug(PROFILES, asked, environment(jax="0.10.2"), given, secrets)
    assert words in caught.value.message
    assert caught.value.details["key"] == "debug"
    assert caught.value.hint


def test_a_word_that_a_newer_tpuctl_wrote_down_is_told():
    with pytest.raises(UsageError, match="'later' is unknown to this tpuctl"):
        render_debug(PROFILES, ["hlo", "later"], None)


def test_what_agrees_is_taken():
    same = {"JAX_DEBUG_NANS": "1", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    found = check_debug(PROFILES, ("nans", "hlo"), environment(jax="0.10.2"), same)
    assert found.set["JAX_DEBUG_NANS"] == "1"
    assert found.append == DUMP
    assert check_debug(PROFILES, ("sdc",), None, {}).append == {"LIBTPU_INIT_ARGS": SDC}


def test_every_word_says_what_it_is_and_every_row_its_source():
    assert all(profile.what and profile.rows for profile in PROFILES.values())
    assert all(row.source and (row.set or row.append) for each in PROFILES.values() for row in each.rows)
    assert len({part.folder for part in HOST_PARTS}) == len(HOST_PARTS)
    assert large_parts() == {"dumps": 2, "traces": 1}


# ---------------------------------------------------------------- on hosts


def in_agent(code: str, home: Path, given: Any = None) -> Any:
    """What `code` prints with the agent's modules, whose home is `home`."""
    lines = "import json, os, sys, dumps\nfrom base import Attempt, Refused, make_dir\n"
    lines += 'given = json.load(sys.stdin)\nattempt = Attempt({"run": "r1", "attempt": "1"})\n'
    done = subprocess.run(
        [sys.executable, "-c", lines + code],
        input=json.dumps(given),
        env={"PYTHONPATH": str(AGENT), "PATH": os.environ["PATH"], "HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


GIVEN = """
begun = [(["p"], {"XLA_FLAGS": "--own=1"}), (["p"], {})][: given["count"]]
try:
    print(json.dumps(dumps.given(attempt, given["asked"], begun, given["joined"])))
except Refused as error:
    print(json.dumps(str(error)))
"""


def test_each_process_has_a_folder_and_keeps_its_own_flags(tmp_path):
    asked = {"set": {"JAX_DUMP_IR_TO": "{dumps}/ir"}, "append": {"XLA_FLAGS": ["--xla_dump_to={dumps}/hlo"]}}
    found = in_agent(GIVEN, tmp_path, {"asked": asked, "joined": False, "count": 2})
    top = tmp_path / ".tpuctl" / "runs" / "r1" / "1" / "dumps"
    assert [env for _, env in found] == [
        {
            "XLA_FLAGS": f"{own}--xla_dump_to={top}/{n}/hlo",
            "JAX_DUMP_IR_TO": f"{top}/{n}/ir",
            "TPUCTL_DUMPS": f"{top}/{n}",
        }
        for n, own in enumerate(("--own=1 ", ""))
    ]
    assert sorted(path.name for path in top.iterdir()) == ["0", "1"]
    [[_, env]] = in_agent(GIVEN, tmp_path, {"asked": asked, "joined": True, "count": 1})
    assert env["TPUCTL_DUMPS"] == f"{top}/launcher"


def test_a_flag_of_the_login_of_a_host_is_never_overruled(tmp_path):
    asked = {"append": {"XLA_FLAGS": ["--own=2"]}}
    said = in_agent(GIVEN, tmp_path, {"asked": asked, "joined": False, "count": 1})
    assert said == (
        "XLA_FLAGS of this host's login has --own=1, and --debug --own=2: "
        "take it out there, or leave out --debug"
    )
    asked = {"append": {"XLA_FLAGS": ["--own=1", "--more"]}}
    [[_, env]] = in_agent(GIVEN, tmp_path, {"asked": asked, "joined": False, "count": 1})
    assert env["XLA_FLAGS"] == "--own=1 --more"


BOUND = """
folder = make_dir(os.path.join(attempt.path("dumps"), "0"))
for number in range(10):
    path = os.path.join(folder, "module_%d" % number)
    with open(path, "wb") as file:
        file.write(bytes(100 << 10))
        os.fsync(file.fileno())
    os.utime(path, (1000 + number, 1000 + number))
with open(os.path.join(folder, "sparse"), "wb") as file:
    file.truncate(1 << 40)
remove = os.unlink
def unlink(path):
    if path.endswith("module_0"):
        raise PermissionError(path)
    remove(path)
os.unlink = unlink
dumps.MOST = given << 10
bound = dumps.Bound(attempt)
bound.look()
names = sorted(os.listdir(folder))
bound.look()  # not yet
with open(os.path.join(attempt.path("dumps"), "removed.json")) as file:
    print(json.dumps([names, json.load(file)]))
"""


def test_the_oldest_dumps_go_where_they_become_too_much(tmp_path):
    names, said = in_agent(BOUND, tmp_path, 500)
    assert names == ["module_0", "module_7", "module_8", "module_9", "sparse"]
    assert said == {"files": 6, "bytes": 600 << 10}
    names, said = in_agent(BOUND, tmp_path, 500)
    assert said["files"] == 12, "what was removed before counts, too"


KEPT = """
import prepare
for number in "2345":
    other = Attempt({"run": "r1", "attempt": number})
    make_dir(other.path("dumps")), make_dir(other.path("join"))
    with open(other.path("status.json"), "w") as file:
        row = {"schema": 1, "boot_id": "other", "supervisor": {"pid": 1, "start_time": 1}, "state": "exited"}
        json.dump(row, file)
    os.utime(other.dir, (1e9 + int(number), 1e9 + int(number)))
prepare.sweep(attempt, {"dumps": 2})
ends = [Attempt({"run": "r1", "attempt": number}) for number in "2345"]
print(json.dumps([[os.path.isdir(each.path(name)) for each in ends] for name in ("dumps", "join")]))
"""


def test_only_the_newest_ended_attempts_keep_their_dumps(tmp_path):
    assert in_agent(KEPT, tmp_path) == [[False, False, True, True], [True, True, True, True]]


def test_a_process_below_torchrun_has_a_folder_of_its_own(tmp_path):
    above = tmp_path / "dumps" / "launcher"
    (tmp_path / "members").mkdir()
    done = subprocess.run(
        [sys.executable, str(AGENT / "member.py"), str(tmp_path), "env"],
        env={
            "PATH": os.environ["PATH"],
            **{"LOCAL_RANK": "3", "RANK": "7", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "1"},
            "TPUCTL_DUMPS": str(above),
            "XLA_FLAGS": f"--own --xla_dump_to={above}/hlo",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    own = tmp_path / "dumps" / "3"
    assert f"XLA_FLAGS=--own --xla_dump_to={own}/hlo\n" in done.stdout
    assert f"TPUCTL_DUMPS={own}\n" in done.stdout
    assert own.is_dir()
