"""Checkpoints that the real PyTorch wrote, looked at by `tpuctl check weights`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.require import require_torch_xla
from tpuctl.errors import TpuctlError
from tpuctl.preflight.check_weights import check_weights
from tpuctl.preflight.local_env import LocalPython

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(900)]
WRITE = """
import sys, torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(512, 64)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(6))
        self.norm = torch.nn.LayerNorm(64)

def write(name, spoil=lambda layers: None, dtype=torch.float32, draw=None):
    torch.manual_seed(0)
    model = Model()
    with torch.no_grad():
        for layer in model.layers if draw else ():
            draw(layer.weight)
        spoil(model.layers)
    model.to(dtype)
    optimizer = torch.optim.Adam(model.parameters())
    x = model.embed(torch.arange(8))
    sum(layer(x).sum() for layer in model.layers).backward()
    before = {name: leaf.clone() for name, leaf in model.state_dict().items()}
    optimizer.step()  # for its moments
    kept = {"model": before, "optimizer": optimizer.state_dict()}
    torch.save({**kept, "step": 1}, f"{sys.argv[1]}/{name}.pt")

def copy(layers): layers[3].weight.copy_(layers[1].weight)
def step_back(layers): layers[3].weight.mul_(0.1)

write("float32")
write("bfloat16", dtype=torch.bfloat16)
write("truncated", draw=lambda weight: torch.nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04))
write("dead", lambda layers: layers[3].weight.zero_())
write("double", copy)
write("small", step_back)
torch.save(Model(), f"{sys.argv[1]}/whole.pt")
"""
WRONG = {
    "float32": "",
    "bfloat16": "",
    "truncated": "",
    "dead": "all zeros",
    "double": "the same values as model/layers.1.weight",
    "small": "of what the other 5 layers have",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("torch")
    subprocess.run([require_torch_xla(), "-c", WRITE, str(made)], check=True, timeout=600)
    return made


@pytest.mark.parametrize("name", WRONG)
def test_bad_layers_are_found_and_good_ones_not(folder: Path, name: str) -> None:
    python = LocalPython(Path(require_torch_xla()), {})
    found = check_weights(folder / f"{name}.pt", "", None, python, {})
    errors = [each for each in found.findings if each.level == "error"]
    assert [each.leaf for each in errors] == (["model/layers.3.weight"] if WRONG[name] else [])
    assert not errors or WRONG[name] in errors[0].what
    assert WRONG[name] or not found.findings


def test_what_is_no_mere_data_is_not_loaded(folder: Path) -> None:
    with pytest.raises(TpuctlError, match="reads with weights_only"):
        check_weights(folder / "whole.pt", "", None, LocalPython(Path(require_torch_xla()), {}), {})
