"""The command with which `rerun` answers checkpoints in parts, on real parts of ranks of PyTorch/XLA."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.provenance.samples import a_manifest
from tests.support.jobs import SPEC
from tests.support.require import require_torch_xla
from tpuctl.model.refs import MountRef
from tpuctl.provenance.manifest import typed
from tpuctl.provenance.rerun import Available, Bucket, PartFate, plan_rerun

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(900)]

WORLD = 4
WRITE = """
import sys, torch, torch_xla
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
folder, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
layers = torch.nn.Linear(37, 53), torch.nn.ReLU(), torch.nn.Linear(53, 11), torch.nn.BatchNorm1d(11)
model = torch.nn.Sequential(*layers)
if rank == 0:
    torch.save(model.state_dict(), f"{folder}/one.pt")
group = [list(range(world))]
model = FSDP(model.to("xla"), sharding_groups=group, sharding_rank=rank, sharding_world_size=world)
torch_xla.sync()
weights = {name: leaf.cpu() for name, leaf in model.state_dict().items()}
kept = {"model": weights, "shard_metadata": model.get_shard_metadata()}
torch.save(kept, f"{folder}/c/step_100_rank-{rank}-of-{world}.pth")
"""
COMPARE = """
import sys, torch
one, found = (torch.load(f"{sys.argv[1]}/{name}") for name in ("one.pt", "c/step_100_consolidated.pth"))
assert one.keys() == found["model"].keys(), found["model"].keys()
for name, leaf in one.items():
    assert torch.equal(leaf, found["model"][name]), name
"""


def test_parts_of_four_processes_become_the_weights_of_one(tmp_path: Path) -> None:
    python = require_torch_xla()
    (tmp_path / "c").mkdir()
    words = (python, "-c", WRITE, str(tmp_path))
    ranks = [
        subprocess.Popen([*words, str(rank), str(WORLD)], env={"PJRT_DEVICE": "CPU"}) for rank in range(WORLD)
    ]
    assert [rank.wait(600) for rank in ranks] == [0] * WORLD
    parts = tuple(f"c/{path.name}" for path in (tmp_path / "c").iterdir())
    assert len(parts) == WORLD

    manifest = typed(a_manifest())
    spec = replace(SPEC, mounts=(MountRef("b", str(tmp_path), "checkpoint"),))
    there = Available("big", spec, False, bucket=Bucket("gs://b/c", "gs://b/c", 1, parts))
    [missing] = [each for each in plan_rerun(manifest, there) if each.what == "checkpoint c/step_100"]
    assert missing.fate is PartFate.MISSING
    command = missing.hint.partition(" -- ")[2].partition(";")[0]
    program, *arguments = shlex.split(command)
    assert program == "python3"
    subprocess.run([python, *arguments], env={"PJRT_DEVICE": "CPU"}, check=True, timeout=300)
    subprocess.run([python, "-c", COMPARE, str(tmp_path)], check=True, timeout=300)
    whole = replace(there, bucket=Bucket("gs://b/c", "gs://b/c", 1, (*parts, "c/step_100_consolidated.pth")))
    fates = {each.what: each.fate for each in plan_rerun(manifest, whole)}
    assert fates["checkpoint c/step_100"] is PartFate.CHANGED
