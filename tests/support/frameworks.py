"""A small library in the place of JAX, with the functions by which that takes its devices."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "jax/__init__.py": """\
import types
from jax._src.distributed import initialize
from jax._src import xla_bridge
config = types.SimpleNamespace(jax_platforms="tpu,cpu")
distributed = types.SimpleNamespace(initialize=initialize)
def device_count(): return xla_bridge.backends()[1]
def default_backend(): return xla_bridge.backends()[0]
""",
    "jax/_src/__init__.py": "",
    "jax/_src/distributed.py": "def initialize(): pass\n",
    "jax/_src/xla_bridge.py": """\
import os, time
found = (os.environ.get("FAKE_BACKEND", "tpu"), int(os.environ.get("FAKE_DEVICES", "8")))
def backends():
    time.sleep(float(os.environ.get("FAKE_WAIT", "0")))
    return found
""",
}


def write_jax(folder: Path) -> None:
    """Puts the library into `folder`. FAKE_BACKEND and FAKE_DEVICES say what it finds, FAKE_WAIT how many
    seconds that takes."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
