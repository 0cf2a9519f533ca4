"""tpu-info, Google's own client of the service that tells what chips do, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import uv

from tests.support.cache import cached, run_commands

REQUIREMENT = "tpu-info==0.14.2"
READ = """\
import dataclasses, json, sys
from tpu_info import device, metrics
addr, chip = sys.argv[1], device.TpuChip[sys.argv[2]]
plain = lambda rows: [each._asdict() for each in rows]
print(json.dumps({
    "usage": plain(metrics.get_chip_usage(chip, addr)),
    "bandwidth": metrics.get_runtime_hbm_utilization(addr),
    "idle": metrics.get_tensorcore_idle_duration(addr),
    "queue": plain(metrics.get_hlo_queue_size(chip, addr)),
    "timing": plain(metrics.get_hlo_exec_timing(chip, addr)),
    "transfers": {each: plain(metrics.get_transfer_latency(each, addr))
                  for each, name in metrics.LIBTPU_METRIC_MAP.items() if name.startswith("megascale.")},
    "cores": [dataclasses.asdict(each) for each in metrics.get_tpuz_info(addr, include_hlo_info=True)],
}))
"""


def tpu_info_python() -> Path:
    """An interpreter that has it, installed once into the cache. Skips without an index."""

    def install(folder: Path) -> None:
        python = folder / "bin" / "python"
        run_commands(
            (uv.find_uv_bin(), "-q", "venv", "--clear", "--relocatable", "--python", sys.executable, folder),
            (uv.find_uv_bin(), "-q", "pip", "install", "--python", python, REQUIREMENT),
            UV_SYSTEM_CERTS="1",
        )

    return cached(f"{REQUIREMENT}-{sys.implementation.cache_tag}", install) / "bin" / "python"


def read_by_tpu_info(address: str, chip: str) -> dict[str, Any]:
    """What its getters say of the service at HOST:PORT; `chip` as its `TpuChip` names it, such as V4."""
    words = [str(tpu_info_python()), "-c", READ, address, chip]
    environ = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))
