"""A real JAX on the hosts of a group: it finds its peers by what Compute Engine tells them alone."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.sim.test_compute_groups import (
    GROUPS,
    INSTANCES,
    POLICIES,
    TEMPLATES,
    group,
    policy,
    properties,
)
from tests.support.hosts import wait_until
from tests.support.jax_python import jax_python
from tests.support.sim import RunningSim, running_sim

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = """\
import os
import jax
# Without chips JAX concludes that it is not in the cloud, and asks no metadata server.
os.environ.pop("TPU_SKIP_MDS_QUERY", None)
jax.distributed.initialize()
import jax.numpy as jnp
from jax.experimental.multihost_utils import process_allgather
mine = jnp.array([10 ** jax.process_index()])
print(jax.process_index(), jax.process_count(), int(process_allgather(mine).sum()))
"""
VARIABLES = "JAX_FORCE_TPU_INIT=1 JAX_PLATFORMS=cpu JAX_CPU_COLLECTIVES_IMPLEMENTATION=gloo"


def make_group(sim: RunningSim, key: str) -> dict[str, Any]:
    """A slice of two hosts as Google's page describes it; its members by name."""

    def call(verb: str, path: str, body: Any = None) -> Any:
        answer = sim.call(verb, f"compute/v1/projects/sim-project{path}", json=body)
        assert answer.ok, answer.text
        return answer.json()

    metadata = {"items": [{"key": "ssh-keys", "value": f"alice:{key}"}]}
    call("POST", POLICIES, {"name": "a", "workloadPolicy": policy(acceleratorTopology="2x4")})
    call("POST", TEMPLATES, {"name": "a", "properties": properties(metadata=metadata)})
    call("POST", GROUPS, group(2))
    wait_until(lambda: call("GET", f"{GROUPS}/a")["status"]["isStable"])
    return {each["name"]: each for each in call("GET", INSTANCES)["items"]}


def test_jax_numbers_processes_as_the_group_does(tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    with jax_python() as python, running_sim(tmp_path) as sim:
        members = make_group(sim, key.with_suffix(".pub").read_text().strip())

        def run(name: str, command: str, sent: str) -> str:
            address = members[name]["networkInterfaces"][0]["accessConfigs"][0]["natIP"]
            options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")
            words = [word for each in options for word in ("-o", each)]
            at = ["-i", str(key), "-p", str(sim.ssh_port), f"alice@{address}"]
            all_words = ["ssh", *words, *at, command]
            done = subprocess.run(all_words, input=sent, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines()[-1]

        def on_all(command: str, sent: str = "") -> dict[str, str]:
            """By member, the last line of a command that runs on all at the same time."""
            with ThreadPoolExecutor() as pool:
                return dict(zip(members, pool.map(lambda name: run(name, command, sent), members), strict=True))

        url = "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/attributes/agent-worker-number"
        numbers = on_all(f"curl -sf -H Metadata-Flavor:Google {url}")
        assert numbers == {"a-w-001": "1", "a-w-002": "0"}
        said = on_all(f"env {VARIABLES} {python} -", PROGRAM)
        assert said == {name: f"{number} 2 11" for name, number in numbers.items()}
