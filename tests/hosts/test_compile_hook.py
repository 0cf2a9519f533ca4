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
