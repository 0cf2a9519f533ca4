"""Variables that programs saw, for manifests: one row for what is the same, no secrets."""

from __future__ import annotations

import pytest

from tests.support.jobs import bring_up, run_to_end
from tests.support.memory.process import Process, Steps
from tpuctl.model.secret_patterns import MASK
from tpuctl.model.shipped_files import load_secret_patterns
from tpuctl.runs.process_env import effective_rows


def test_variables_are_told_once_for_all_workers_and_secrets_are_masked() -> None:
    token = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0" + "dE"
    seen = {
        0: {"XLA_FLAGS": "--a", "TPU_WORKER_ID": "0", "HF_TOKEN": token},
        1: {"XLA_FLAGS": "--a", "TPU_WORKER_ID": "1", "HF_TOKEN": token},
    }
    assert list(effective_rows(seen, load_secret_patterns())) == [
        {"name": "HF_TOKEN", "value": MASK, "workers": "0-1"},
        {"name": "TPU_WORKER_ID", "value": "0", "workers": "0"},
        {"name": "TPU_WORKER_ID", "value": "1", "workers": "1"},
        {"name": "XLA_FLAGS", "value": "--a", "workers": "0-1"},
    ]


@pytest.mark.parametrize(
    ("variables", "platforms"), [({}, "tpu,cpu"), ({"JAX_PLATFORMS": "cpu"}, "cpu")], ids=["chips", "rehearsal"]
)
def test_the_chips_come_first_unless_a_run_says_otherwise(place, services, variables, platforms) -> None:
    names = ("JAX_PLATFORMS", "PJRT_DEVICE", "TPUCTL_RANK", "TPUCTL_WORLD_SIZE")

    def tell(process: Process) -> Steps:
        process.print(" ".join(process.env[name] for name in names))
        yield 0.0

    place.hosts.programs["main.py"] = tell
    bring_up(services, "big")
    run_to_end(services, "big", "tells", variables=variables)
    assert sorted(services.output().splitlines()) == [f"{platforms} TPU {rank} 2" for rank in (0, 1)]
