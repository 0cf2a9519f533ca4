"""What is said of a program's parameters while it runs, with the real libraries that have them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.hooks import write_hooks
from tests.support.jax_python import flax_packages
from tests.support.require import require_torch_xla
from tests.support.soak import long, soak

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TRAIN_STATE = """
import jax, optax
from flax.training.train_state import TrainState
keys = jax.random.split(jax.random.key(0), 4)
draw = jax.nn.initializers.lecun_normal()
params = {f"layer_{i}": {"kernel": draw(keys[i], (64, 64))} for i in range(4)}
params["layer_2"]["kernel"] *= SPOILT
new = lambda params: TrainState.create(apply_fn=None, params=params, tx=optax.sgd(0.1))
jax.eval_shape(new, params)
state = new(params)
"""
NNX = """
import jax, optax
from flax import nnx
model = nnx.Dict({f"layer_{i}": nnx.Linear(64, 64, rngs=nnx.Rngs(i)) for i in range(4)})
model["layer_2"].kernel[...] *= SPOILT
nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
"""
TORCH = """
import torch
model = torch.nn.ModuleDict({f"layer_{i}": torch.nn.Linear(64, 64) for i in range(4)})
with torch.no_grad():
    model["layer_2"].weight *= SPOILT
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    sum(layer(torch.ones(64)).sum() for layer in model.values()).backward()
    optimizer.step()
"""
XLA = TORCH.replace("lr=0.1)", "lr=0.1)\nimport torch_xla").replace(
    "with torch", "import torch_xla\nmodel = model.to('xla')\nwith torch"
)
XLA = XLA.replace("torch.ones(64)", "torch.ones(64, device='xla')")
LAYER = {"train-state": "layer_2/kernel", "nnx": "layer_2/kernel", "torch": "layer_2.weight"}


def run(
    folder: Path, program: str, mode: str, interpreter: str, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    write_hooks(folder)
    behind = variables.get("PYTHONPATH", "")
    environ = {
        **{"PATH": os.environ["PATH"], "TPUCTL_JOIN": str(folder), "TPUCTL_JOIN_WEIGHTS": mode},
        **{**variables, "PYTHONPATH": os.pathsep.join([str(folder), behind])},
    }
    words = [interpreter, "-c", f"{program}\nprint('trained')"]
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=500, check=False)


def flax_run(folder: Path, program: str, mode: str) -> subprocess.CompletedProcess[str]:
    return run(
        folder, program, mode, sys.executable, {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(flax_packages())}
    )


def torch_run(folder: Path, program: str, mode: str) -> subprocess.CompletedProcess[str]:
    return run(folder, program, mode, require_torch_xla(), {"PJRT_DEVICE": "CPU"})


HOW = {
    "train-state": (flax_run, TRAIN_STATE),
    "nnx": (flax_run, NNX),
    "torch": (torch_run, TORCH),
    "xla": (torch_run, XLA),
}


@pytest.mark.parametrize(
    ("library", "spoilt", "said"),
    [
        long("train-state", "0", "all zeros"),
        long("train-state", "1", ""),
        long("nnx", "0.1", "of what the other 3 layers have"),
        soak("torch", "0.1", "of what the other 3 layers have"),
        soak("torch", "1", ""),
        soak("xla", "0", "all zeros"),
    ],
)
def test_a_bad_layer_is_said_and_ends_a_strict_run_before_its_second_step(
    tmp_path: Path, library: str, spoilt: str, said: str
) -> None:
    how, program = HOW[library]
    layer = LAYER["torch" if library == "xla" else library]
    for mode in ("warn", "strict"):
        folder = tmp_path / mode
        folder.mkdir()
        done = how(folder, program.replace("SPOILT", spoilt), mode)
        ended = bool(said) and mode == "strict"
        assert (done.returncode, done.stdout) == ((1, "") if ended else (0, "trained\n")), done
        [report] = [json.loads(path.read_text())["weights"] for path in folder.glob("*.json")]
        if said:
            assert f"tpuctl: weights: error {layer}: " in done.stderr
            assert said in done.stderr
            assert f": error {layer}: " in report
        else:
            assert "tpuctl" not in done.stderr
            assert report.endswith("leaves: nothing found")
        ends = "tpuctl: --check strict ends this run: 1 of its parameters are wrong"
        assert (ends in done.stderr) == ended
