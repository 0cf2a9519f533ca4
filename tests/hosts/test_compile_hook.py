"""What processes of a run say of the programs that they compile, with two real JAX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.hooks import reports, run_hooked, write_hooks
from tests.support.jax_python import flax_packages, old_jax_packages
from tests.support.require import require_torch_xla

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PACKAGES = {"0.10.2": flax_packages, "0.4.30": old_jax_packages}
TRAIN = """
import functools, json, os, jax, jax.numpy as jnp
@jax.jit
def train_step(w, batch): return w @ batch
w = jnp.ones((8, 8))
for n in (4, 5, 4): train_step(w, jnp.ones((8, n)))
train_step(w, jnp.ones((8, 4), jnp.bfloat16))
def tell(step):
    with open(os.environ["PROGRESS"], "w") as file: json.dump({"step": step}, file)
tell(100)
train_step(w, jnp.ones((8, 6)))
jax.jit(lambda: 1)()
tell(101)
for n in (6, 7, 5): train_step(w, jnp.ones((8, n)))
train_step.clear_cache()
train_step(w, jnp.ones((8, 7)))
for _ in range(3): jax.jit(lambda x: x + 1)(w)
jax.pmap(lambda x: x * 2)(jnp.ones((1, 3)))
class Model:
    @functools.partial(jax.jit, static_argnums=0)
    def update(self, x): return x * 2
Model().update(w)
jax.jit(lambda x: x - 1).lower(w).compile()
print(jax.__version__)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "join"
    write_hooks(made)
    return made


@pytest.fixture(params=PACKAGES)
def packages(request: pytest.FixtureRequest) -> Path:
    found: Callable[[], Path] = PACKAGES[request.param]
    return found()


def compiled(folder: Path) -> dict[str, Any]:
    """What one process said; then it is removed."""
    (report,) = reports(folder, ".compiles")
    (folder / f"{report['pid']}.compiles").unlink()
    return report


def test_functions_are_counted_by_their_shapes(folder: Path, packages: Path) -> None:
    run_hooked(folder, TRAIN, packages, JAX_PLATFORMS="cpu", PROGRESS=str(folder.parent / "progress.json"))
    report = compiled(folder)
    rows = {(row["name"], row["place"]): row for row in report["functions"]}
    step = rows["train_step", "<string>:3"]
    assert {key: row["times"] for key, row in rows.items()} == {
        ("train_step", "<string>:3"): 6,
        ("<lambda>", "<string>:12"): 1,
        ("<lambda>", "<string>:17"): 3,
        ("<lambda>", "<string>:18"): 1,
        ("update", "<string>:20"): 1,
        ("<lambda>", ""): 1,
    }
    assert step["shapes"] == ["f32(8,4)", "f32(8,5)", "bf16(8,4)", "f32(8,6)", "f32(8,7)"]
    again = step["again"]
    assert (again["times"], again["step"], again["shapes"]) == (3, 100.0, ["f32(8,6)", "f32(8,7)"])
    assert 0 < again["seconds"] < step["seconds"]
    assert rows["<lambda>", "<string>:12"]["again"]["times"] == 0
    assert report["operations"] > 0
    assert (report["asked"], report["loaded"], report["now"], report["process"]) == (0, 0, None, None)


XLA = """
import json, os, warnings; warnings.simplefilter("ignore")
import torch, torch_xla
device = torch_xla.device()
layer = torch.nn.Linear(8, 8).to(device)
def step(size):
    layer(torch.ones(size, 8, device=device)).sum().backward()
    torch_xla.sync()
for size in (4, 4, 4): step(size)
print(torch.linalg.eig(torch.ones(3, 3, device=device))[0].shape)
def tell(step):
    with open(os.environ["PROGRESS"], "w") as file: json.dump({"step": step}, file)
before = TIMES
tell(100)
for size in (5, 6, 4): step(size)
import _XLAC; print(before, _XLAC._xla_metric_data("CompileTime")[0])
if os.fork() == 0: os._exit(0)
os.wait()
"""


@pytest.mark.long
def test_graphs_and_operations_on_the_cpu_are_counted(folder: Path) -> None:
    looked = "(__import__('time').sleep(7), __import__('_XLAC')._xla_metric_data('CompileTime')[0])[1]"
    program = XLA.replace("TIMES", looked)
    python, progress = require_torch_xla(), str(folder.parent / "progress.json")
    said = run_hooked(folder, program, interpreter=python, PJRT_DEVICE="CPU", PROGRESS=progress)
    before, after = map(int, said.split()[-2:])
    report = compiled(folder)
    assert report["on_cpu"] == {"aten::linalg_eig": 1}
    (graphs,) = report["functions"]
    assert (graphs["name"], graphs["times"]) == ("PyTorch/XLA", after)
    assert (graphs["again"]["times"], graphs["again"]["step"]) == (after - before, 100.0)
    assert 0 < before < after


ODD = {
    "no home": ("", {"HOME": ""}),
    "a home that is not there": ("", {"HOME": "/nowhere"}),
    "its own log of compiles": ("import logging; logging.basicConfig(level=60)", {"JAX_LOG_COMPILES": "1"}),
    "a folder that cannot be written": ("import os; os.rename(FOLDER, FOLDER + '.old')", {}),
    "a full disk": ("import os; [os.symlink('/dev/full', f'{FOLDER}/{os.getpid()}.compiles.new')]", {}),
    "its own function before": (
        "from jax._src import compiler\nof_jax = compiler.compile_or_get_cached\n"
        "compiler.compile_or_get_cached = lambda *a, **k: of_jax(*a, **k)",
        {},
    ),
    "a function of another release": (
        "from jax._src import compiler\nof_jax = compiler.compile_or_get_cached\n"
        "def rest(*a, **k): return of_jax(*a, **k)\nof_jax.__wrapped__ = None",
        {},
    ),
}
STEP = "import jax, jax.numpy as jnp\nprint(jax.jit(lambda x: x @ x)(jnp.ones((3, 3)))[0, 0])"


@pytest.mark.long
@pytest.mark.parametrize("how", ODD)
def test_a_program_does_not_notice_it(folder: Path, how: str) -> None:
    first, variables = ODD[how]
    program = f"FOLDER = {str(folder)!r}\n{first}\n{STEP}"
    assert run_hooked(folder, program, flax_packages(), JAX_PLATFORMS="cpu", **variables).strip() == "3.0"


FORKS = """
import os, threading, jax, jax.numpy as jnp
assert mine
f = jax.jit(lambda x: x + 1)
if os.fork() == 0:
    f(jnp.ones((99,)))
    os._exit(0)
os.wait()
threads = [threading.Thread(target=f, args=(jnp.ones((n + 1,)),)) for n in range(8)]
for each in threads: each.start()
for each in threads: each.join()
print(os.getpid(), flush=True)
"""


def test_threads_and_forks_are_counted_apart(folder: Path) -> None:
    (folder.parent / "own").mkdir()
    (folder.parent / "own" / "sitecustomize.py").write_text("import builtins; builtins.mine = True\n")
    own = {"TPUCTL_LOCAL_WORLD_SIZE": "4", "TPUCTL_LOCAL_RANK": "2", "JAX_PLATFORMS": "cpu"}
    pid = int(run_hooked(folder, FORKS, folder.parent / "own", flax_packages(), **own))
    rows = {row["pid"]: row for row in reports(folder, ".compiles")}
    assert {who == pid: [each["times"] for each in row["functions"]] for who, row in rows.items()} == {
        True: [8],
        False: [1],
    }
    assert {row["process"] for row in rows.values()} == {2}


def test_what_is_kept_is_bounded(folder: Path) -> None:
    program = """
import sys, types
sys.path.insert(0, FOLDER)
import tpuctl_compile_hook as hook
state = hook.mine()
for n in range(10_000):
    types_ = tuple(f"tensor<{n // 100 + i}x4xf32>" for i in range(3))
    hook.add(state, {"name": f"f{n % 100}", "place": "", "types": types_, "placed": 0}, 0.001)
hook.write(state)
print(state.total["left_out"])
""".replace("FOLDER", repr(str(folder)))
    assert int(run_hooked(folder, program)) == 3600
    (path,) = folder.glob("*.compiles")
    assert path.stat().st_size < 100_000
    report = compiled(folder)
    assert len(report["functions"]) == 64
    assert {row["times"] for row in report["functions"]} == {100}
    assert {(len(row["shapes"]), row["more"]) for row in report["functions"]} == {(16, 84)}
