"""What a run's program finds in its environment, on hosts whose logins know nothing of a TPU."""

from __future__ import annotations

import pytest

from tests.support.jobs import bring_up, run_to_end
from tests.support.services import sim_services
from tests.support.sim import running_sim
from tpuctl.model.records import RunState

TELL = """
import os
names = ("JAX_PLATFORMS", "PJRT_DEVICE", "TPUCTL_RANK", "TPUCTL_WORLD_SIZE", "TPU_WORKER_ID")
print(" ".join(f"{name}={os.environ.get(name)}" for name in names), flush=True)
"""


@pytest.fixture
def services(tmp_path):
    with running_sim(tmp_path) as sim, sim_services(sim, tmp_path / "state") as made:
        yield made


def test_the_chips_come_first_and_the_cpu_backend_stays(services):
    bring_up(services, "big")
    assert run_to_end(services, "big", TELL).state is RunState.SUCCEEDED
    told = "JAX_PLATFORMS=tpu,cpu PJRT_DEVICE=TPU TPUCTL_RANK={} TPUCTL_WORLD_SIZE=2 TPU_WORKER_ID=None"
    assert sorted(services.output().splitlines()) == [told.format(0), told.format(1)]


def test_a_rehearsal_on_the_cpu_says_so_itself(services):
    bring_up(services, "big")
    run_to_end(services, "big", TELL, variables={"JAX_PLATFORMS": "cpu"})
    assert "JAX_PLATFORMS=cpu PJRT_DEVICE=TPU" in services.output()
