"""What processes of a run say of their devices, through the hook that PYTHONPATH gives them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import uv

from tests.support.frameworks import write_jax, write_torch_xla
from tests.support.require import require_index, require_torch_xla
from tests.support.session import ROOT

HOOK = ROOT / "tpuctl" / "agent" / "join_hook.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "join"
    made.mkdir()
    shutil.copy(HOOK, made / "sitecustomize.py")
    return made


def python(
    folder: Path, program: str, *behind: Path, interpreter: str = sys.executable, **variables: str
) -> str:
    environ = {"PATH": os.environ["PATH"], "TPUCTL_JOIN": str(folder), "TPUCTL_JOIN_PLATFORMS": "tpu,cpu"}
    environ["PYTHONPATH"] = os.pathsep.join(map(str, [folder, *behind]))
    done = subprocess.run(
        [interpreter, "-c", program], env={**environ, **variables}, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def reports(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    made = tmp_path / "library"
    write_jax(made)
    return made


def test_a_process_says_which_devices_it_has(folder: Path, library: Path) -> None:
    pid = python(folder, "import jax, os; jax.device_count(); print(os.getpid())", library)
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
    python(folder, f"import torch_xla.runtime\nfor _ in range(2): {taken}", made, FAKE_BACKEND=backend)
    (report,) = reports(folder)
    assert (report["backend"], report["devices"], report["waits"]) == (backend.lower(), 8, False)


def test_importing_torch_xla_alone_says_nothing(folder: Path, tmp_path: Path) -> None:
    write_torch_xla(tmp_path / "library")
    python(folder, "import torch_xla.runtime", tmp_path / "library")
    assert reports(folder) == []


def test_importing_alone_says_nothing(folder: Path, library: Path) -> None:
    python(folder, "import jax", library)
    assert reports(folder) == []


def test_while_it_waits_for_them_it_says_since_when(folder: Path, library: Path) -> None:
    program = "import jax, threading; threading.Thread(target=jax.device_count, daemon=True).start(); "
    python(folder, program + "import time; time.sleep(0.5)", library, FAKE_WAIT="30")
    (report,) = reports(folder)
    assert report["waits"] is True
    assert report["since"] > 1e9
    assert "backend" not in report


def test_one_that_fails_waits_no_more(folder: Path, library: Path) -> None:
    program = "import jax\ntry:\n jax.device_count()\nexcept ValueError as error:\n print(error)"
    said = python(folder, program, library, FAKE_WAIT="no number")
    assert "no number" in said
    assert [(each["waits"], "backend" in each) for each in reports(folder)] == [(False, False)]


@pytest.mark.parametrize(("platforms", "chosen"), [("cpu", True), ("tpu,cpu", False), ("", False)])
def test_a_process_that_wants_no_chips_says_so(
    folder: Path, library: Path, platforms: str, chosen: bool
) -> None:
    program = f"import jax; jax.config.jax_platforms = {platforms!r}; jax.device_count()"
    python(folder, program, library, FAKE_BACKEND="cpu")
    assert [report["chosen"] for report in reports(folder)] == [chosen]


def test_a_process_with_some_of_the_chips_says_so(folder: Path, library: Path) -> None:
    python(folder, "import jax; jax.device_count()", library, TPU_VISIBLE_CHIPS="0")
    assert reports(folder)[0]["bounded"] is True


def test_one_of_several_processes_says_which_and_has_all_chips_with_the_others(
    folder: Path, library: Path
) -> None:
    own = {"TPUCTL_LOCAL_WORLD_SIZE": "4", "TPUCTL_LOCAL_RANK": "2", "TPUCTL_JOIN_JOINT": "1"}
    python(folder, "import jax; jax.device_count()", library, TPU_VISIBLE_CHIPS="2", **own)
    [report] = reports(folder)
    assert (report["process"], report["bounded"]) == (2, False)


def test_others_see_nothing_of_it(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins; builtins.mine = __file__\n")
    said = python(folder, "import sys; print(mine); print(sys.path); print('json' in sys.modules)", own)
    assert said.splitlines()[0] == str(own / "sitecustomize.py")
    assert str(folder) not in said.splitlines()[1]
    assert said.splitlines()[2] == "False"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.10.2"])
def test_a_real_jax_is_heard(folder: Path, tmp_path: Path, version: str) -> None:
    require_index()
    venv = tmp_path / "venv"
    quiet = {"check": True, "capture_output": True, "timeout": 240}
    subprocess.run([uv.find_uv_bin(), "venv", "-q", "--python", sys.executable, str(venv)], **quiet)
    install = ["pip", "install", "-q", "--python", str(venv), f"jax=={version}", f"jaxlib=={version}"]
    subprocess.run([uv.find_uv_bin(), *install], **quiet)
    program = "import jax; jax.jit(lambda x: x @ x)(jax.numpy.ones((3, 3))).block_until_ready()"
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), "JAX_PLATFORMS": ""}
    cache |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    said = []
    for _ in range(2):
        python(folder, program, interpreter=str(venv / "bin" / "python"), **cache)
        (report,) = reports(folder)
        assert (report["backend"], report["devices"], report["chosen"]) == ("cpu", 1, False)
        said.append((report["asked"] > 0, report["loaded"] > 0))
        (folder / f"{report['pid']}.json").unlink()
    assert said == [(True, False), (True, True)]


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
    python(folder, program, interpreter=interpreter, PJRT_DEVICE="CPU")
    (report,) = reports(folder)
    assert (report["backend"], report["devices"], report["waits"]) == ("cpu", 1, False)
