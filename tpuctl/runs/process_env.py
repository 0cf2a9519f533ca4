"""What a run's program is told: its variables, by worker; and with which it was started, whoever set them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tpuctl.lib.text import fold_workers
from tpuctl.model.attempts import Attempt
from tpuctl.model.records import RunRecord
from tpuctl.model.secret_patterns import MASK, SecretPatterns

HOST_DEFAULTS: Mapping[str, str] = {"PJRT_DEVICE": "TPU", "JAX_PLATFORMS": "tpu,cpu"}
"""Set unless the host's own environment already says otherwise.

`tpu,cpu` is what JAX itself sets on a TPU VM that has libtpu (jax/_src/cloud_tpu_init.py): it fails when the
chips cannot be opened, and programs keep the CPU backend beside them (`jax.devices("cpu")`). It is said all the
same, because without libtpu JAX sets nothing and goes on on the CPU, with exit status 0. Topology variables are
left alone: libtpu finds them in the metadata server."""
PORT_BESIDE_LIBTPU = 8474
"""Where workers meet whose processes take the ports from `LIBTPU_PORT` on. Google opens this one, too, between
the hosts of a slice by itself (jax-ml/jax issue 35905)."""
LIBTPU_PORT = 8476
"""Of the first process of a host, as in `tpuctl/agent/launch.py`; Google opens none of those after it."""
PORT_BESIDE_RUNS = 8500
"""The same for a run that shares its one host, plus the number of its first chip."""
EFFECTIVE = (
    "XLA_", "LIBTPU_", "JAX_", "PJRT_", "TPU_", "MEGASCALE_", "PT_XLA_", "TORCH_", "HF_", "TF_CPP_",
    "OMP_", "LD_PRELOAD", "PYTHONHASHSEED",
)  # fmt: skip
"""How variables begin that manifests have as the program saw them: those that steer compilers, devices and
loaders, whoever set them."""


def render_environment(run: RunRecord, attempt: Attempt, worker: int) -> dict[str, str]:
    """Variables of one worker, of several processes those of its first: the host gives the others theirs.
    `--var` wins over ours; secrets are not here."""
    variables = {
        "TPUCTL_RUN_ID": run.id,
        "TPUCTL_SLICE": run.slice_name,
        "TPUCTL_ATTEMPT": str(attempt.number),
        "TPUCTL_RANK": str(attempt.workers.index(worker) * attempt.processes),
        "TPUCTL_WORLD_SIZE": str(len(attempt.workers) * attempt.processes),
        "TPUCTL_LOCAL_RANK": "0",
        "TPUCTL_LOCAL_WORLD_SIZE": str(attempt.processes),
        "TPUCTL_COORDINATOR": attempt.coordinator,
        "PYTHONUNBUFFERED": "1",
    }
    if run.chips:
        # Without it jax.distributed.initialize() takes port 8482 on every TPU VM (coordinator_port in
        # jax/_src/clusters/cloud_tpu_cluster.py), which only one run of a host can have.
        variables["JAX_COORDINATOR_ADDRESS"] = attempt.coordinator
    if attempt.slices > 1:
        variables |= _megascale(attempt, worker)
    if run.checkpoint_place:
        variables["TPUCTL_CHECKPOINT_DIR"] = run.checkpoint_place
    return {**variables, **run.spec.variables}


def render_launch(run: RunRecord, attempt: Attempt) -> dict[str, Any]:
    """Which processes each host has, see `tpuctl/agent/programs.py`."""
    return {
        "per": run.spec.per,
        "processes": attempt.processes,
        "nodes": len(attempt.workers),
        "given": sorted({*run.spec.variables, *run.spec.secrets}),
    }


def render_defaults(run: RunRecord) -> dict[str, str]:
    """Variables that all workers have unless the host's environment, the pinned one, `--var` or `--secret` says
    otherwise."""
    return {**HOST_DEFAULTS, **render_wandb(run.wandb_id, run.spec.group, run.spec.tags)}


def render_wandb(wandb_id: str, group: str | None, tags: Sequence[str]) -> dict[str, str]:
    """What makes all attempts of a run one run of Weights & Biases, which goes on after a restart
    (https://docs.wandb.ai/models/runs/resuming)."""
    found = {"WANDB_RUN_ID": wandb_id, "WANDB_RESUME": "allow"}
    if group:
        found["WANDB_RUN_GROUP"] = group
    if tags:
        found["WANDB_TAGS"] = ",".join(tags)
    return found


def _megascale(attempt: Attempt, worker: int) -> dict[str, str]:
    """What libtpu needs to know of a multislice: all three or none, the same everywhere but for the slice's own
    number. The coordinator is process 0 of slice 0, which is the first worker."""
    hosts_per_slice = len(attempt.workers) // attempt.slices
    return {
        "MEGASCALE_COORDINATOR_ADDRESS": attempt.coordinator.rpartition(":")[0],
        "MEGASCALE_NUM_SLICES": str(attempt.slices),
        "MEGASCALE_SLICE_ID": str(worker // hosts_per_slice),
    }


def effective_rows(
    seen: Mapping[int, Mapping[str, str]], patterns: SecretPatterns
) -> tuple[Mapping[str, str], ...]:
    """A row for each variable and value, with the workers that have it. What looks like a secret is masked."""
    workers: dict[tuple[str, str], list[int]] = {}
    for worker, variables in sorted(seen.items()):
        for name, value in variables.items():
            shown = MASK if patterns.find_named(name, value) else value
            workers.setdefault((name, shown), []).append(worker)
    return tuple(
        {"name": name, "value": value, "workers": fold_workers(having)}
        for (name, value), having in sorted(workers.items())
    )
