"""What processes of a run say of their devices, through the hook that PYTHONPATH gives them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.frameworks import write_jax, write_torch_xla
from tests.support.hooks import in_agent, reports, run_hooked, write_hooks
from tests.support.jax_python import flax_packages, old_jax_packages
from tests.support.require import require_torch_xla


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "join"
    write_hooks(made)
    return made


@pytest.fixture
def library(tmp_path: Path) -> Path:
    made = tmp_path / "library"
    write_jax(made)
    return made


NAMES = """
import join, join_hook
for name in ("FOLDER", "PLATFORMS", "NO_DEVICES", "WEIGHTS", "OWN"):
    assert getattr(join, name) == getattr(join_hook, name), name
assert [join.OWN + part for part in join.PARTS] == [name for name, _, _ in join_hook.PARTS]
"""


def test_the_agent_has_the_names_of_the_hook_without_importing_it(tmp_path: Path) -> None:
    in_agent(NAMES, tmp_path)


def test_a_process_says_which_devices_it_has(folder: Path, library: Path) -> None:
    pid = run_hooked(folder, "import jax, os; jax.device_count(); print(os.getpid())", library)
    (report,) = reports(folder)
    del report["since"]
    assert report == {
        **{"backend": "tpu", "devices": 8, "waits": False},
        **{"chosen": False, "bounded": False, "pid": int(pid)},
    }


@pytest.mark.parametrize(
    "taken", ["torch_xla.device()", "torch_xla.runtime.global_runtime_device_count()"], ids=["device", "mesh"]
)
@pytest.mark.parametrize("backend", ["TPU", "CPU"])
def test_a_process_of_torch_xla_says_so_however_it_takes_them(
    folder: Path, tmp_path: Path, taken: str, backend: str
) -> None:
    made = tmp_path / "library"
    write_torch_xla(made)
    run_hooked(folder, f"import torch_xla.runtime\nfor _ in range(2): {taken}", made, FAKE_BACKEND=backend)
    (report,) = reports(folder)
    assert (report["backend"], report["devices"], report["waits"]) == (backend.lower(), 8, False)


READ = """
import json, os, sys, join
from base import Attempt, make_dir
attempt = Attempt({"run": "r", "attempt": "1"})
folder = make_dir(attempt.path("join"))
for pid in [os.getpid(), *range(5_000_001, 5_000_061)]:
    path = os.path.join(folder, "%d.json" % pid)
    with open(path, "w") as file:
        json.dump({"pid": pid}, file)
    os.utime(path, (pid, pid))
print(json.dumps([[each["pid"] for each in join.reports(attempt)], os.getpid()]))
"""


def test_of_very_many_processes_those_that_live_and_the_newest_are_told(tmp_path: Path) -> None:
    told, living = json.loads(in_agent(READ, tmp_path))
    assert told == [living, *range(5_000_030, 5_000_061)]


def test_importing_torch_xla_alone_says_nothing(folder: Path, tmp_path: Path) -> None:
    write_torch_xla(tmp_path / "library")
    run_hooked(folder, "import torch_xla.runtime", tmp_path / "library")
    assert reports(folder) == []


def test_importing_alone_says_nothing(folder: Path, library: Path) -> None:
    run_hooked(folder, "import jax", library)
    assert reports(folder) == []


def test_while_it_waits_for_them_it_says_since_when(folder: Path, library: Path) -> None:
    program = "import jax, threading; threading.Thread(target=jax.device_count, daemon=True).start(); "
    run_hooked(folder, program + "import time; time.sleep(0.5)", library, FAKE_WAIT="30")
    (report,) = reports(folder)
    assert report["waits"] is True
    assert report["since"] > 1e9
    assert "backend" not in report


def test_one_that_fails_waits_no_more(folder: Path, library: Path) -> None:
    program = "import jax\ntry:\n jax.device_count()\nexcept ValueError as error:\n print(error)"
    said = run_hooked(folder, program, library, FAKE_WAIT="no number")
    assert "no number" in said
    assert [(each["waits"], "backend" in each) for each in reports(folder)] == [(False, False)]


@pytest.mark.parametrize(("platforms", "chosen"), [("cpu", True), ("tpu,cpu", False), ("", False)])
def test_a_process_that_wants_no_chips_says_so(
    folder: Path, library: Path, platforms: str, chosen: bool
) -> None:
    program = f"import jax; jax.config.jax_platforms = {platforms!r}; jax.device_count()"
    run_hooked(folder, program, library, FAKE_BACKEND="cpu")
    assert [report["chosen"] for report in reports(folder)] == [chosen]


def test_a_process_with_some_of_the_chips_says_so(folder: Path, library: Path) -> None:
    run_hooked(folder, "import jax; jax.device_count()", library, TPU_VISIBLE_CHIPS="0")
    assert reports(folder)[0]["bounded"] is True


def test_one_of_several_processes_says_which_and_has_all_chips_with_the_others(
    folder: Path, library: Path
) -> None:
    own = {"TPUCTL_LOCAL_WORLD_SIZE": "4", "TPUCTL_LOCAL_RANK": "2", "TPUCTL_JOIN_JOINT": "1"}
    run_hooked(folder, "import jax; jax.device_count()", library, TPU_VISIBLE_CHIPS="2", **own)
    [report] = reports(folder)
    assert (report["process"], report["bounded"]) == (2, False)


def test_others_see_nothing_of_it(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.mine = __file__\n")
    said = run_hooked(folder, "import sys; print(mine); print(sys.path); print('json' in sys.modules)", own)
    assert said.splitlines()[0] == str(own / "sitecustomize.py")
    assert str(folder) not in said.splitlines()[1]
    assert said.splitlines()[2] == "False"


@pytest.mark.slow
@pytest.mark.parametrize("packages", [flax_packages, old_jax_packages])
def test_a_real_jax_is_heard(folder: Path, packages: Callable[[], Path]) -> None:
    run_hooked(folder, "import jax; jax.device_count()", packages(), JAX_PLATFORMS="")
    (report,) = reports(folder)
    assert (report["backend"], report["devices"], report["chosen"]) == ("cpu", 1, False)


TAKEN = {
    "device": "torch_xla.device()",
    "old-device": "import torch_xla.core.xla_model as xm; xm.xla_device()",
    "name": "torch.ones(3).to('xla').sum(); torch_xla.sync()",
    "spmd": "import numpy; import torch_xla.distributed.spmd as xs; torch_xla.runtime.use_spmd(); "
    "count = torch_xla.runtime.global_runtime_device_count(); xs.Mesh(numpy.arange(count), (count,), ('x',))",
}


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", TAKEN)
def test_a_real_torch_xla_is_heard(folder: Path, how: str) -> None:
    interpreter = require_torch_xla()
    program = f"import warnings; warnings.simplefilter('ignore'); import os, torch, torch_xla; {TAKEN[how]}"
    before = f"assert not [n for n in os.listdir({str(folder)!r}) if n.endswith('.json')]; "
    program = program.replace("torch_xla; ", f"torch_xla; {before}", 1)
    run_hooked(folder, program, interpreter=interpreter, PJRT_DEVICE="CPU")
    (report,) = reports(folder)
    assert (report["backend"], report["devices"], report["waits"]) == ("cpu", 1, False)


def test_an_importer_of_the_old_kind_is_no_trouble(folder: Path) -> None:
    program = "import sys; sys.meta_path.append(type('Old', (), {'find_module': lambda *_: None})())\n"
    run_hooked(folder, program + "try: import torch_xla\nexcept ImportError: pass")


@pytest.mark.parametrize("own", [True, False])
def test_python_2_has_only_the_hosts_own(folder: Path, tmp_path: Path, own: bool) -> None:
    interpreter = shutil.which("python2.7")
    if interpreter is None or subprocess.run([interpreter, "-V"], check=False, capture_output=True).returncode:
        pytest.skip("there is no Python 2.7 here")
    if own:
        (tmp_path / "sitecustomize.py").write_text("import __builtin__; __builtin__.mine = 1\n")
    program = "import sys; print(len(sys.path), 'mine' in vars(__builtins__))"
    said = run_hooked(folder, program, tmp_path, interpreter=interpreter)
    assert said.endswith(f"{own})\n")
