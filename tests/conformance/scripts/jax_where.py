"""Where a process is, as JAX's cluster detection finds out on a host: run there, by ssh."""

import os

# Simulated hosts have no chips; with this variable JAX goes on as if they had (jax/_src/cloud_tpu_init.py).
os.environ["JAX_FORCE_TPU_INIT"] = "1"

from jax._src.clusters.cloud_tpu_cluster import GceTpuCluster, get_metadata, get_tpu_env_value

os.environ.pop("TPU_SKIP_MDS_QUERY", None)  # what JAX sets where it finds no chips
print(
    "is_env_present",
    GceTpuCluster.is_env_present(),
    "process",
    GceTpuCluster.get_process_id(),
    "of",
    GceTpuCluster.get_process_count(),
    "coordinator",
    GceTpuCluster.get_coordinator_address(timeout_secs=30, override_coordinator_port=None),
    "type",
    get_metadata("accelerator-type")[0],
    get_tpu_env_value("ACCELERATOR_TYPE"),
    "slice",
    GceTpuCluster._get_slice_id(),
    "of",
    GceTpuCluster._get_num_slices(),
)
