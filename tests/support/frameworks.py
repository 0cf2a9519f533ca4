"""Small libraries in the place of JAX and PyTorch/XLA, with the functions by which these take their devices."""

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
    "jax/_src/monitoring.py": """\
listeners = []
register_event_listener = listeners.append
def record_event(event, **more):
    for listener in listeners: listener(event, **more)
""",
    "jax/_src/compiler.py": """\
import os
from jax._src import monitoring
def compile(name):
    place = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if place is None: return
    monitoring.record_event("/jax/compilation_cache/compile_requests_use_cache")
    if os.path.exists(os.path.join(place, name)): monitoring.record_event("/jax/compilation_cache/cache_hits")
    else: open(os.path.join(place, name), "w").close()
""",
    "jax/_src/distributed.py": "def initialize(): pass\n",
    "jax/_src/xla_bridge.py": """\
import os, time
found = (os.environ.get("FAKE_BACKEND", "tpu"), int(os.environ.get("FAKE_DEVICES", "8")))
def backends():
    time.sleep(float(os.environ.get("FAKE_WAIT", "0")))
    return found
""",
}

TORCH_XLA = {
    "_XLAC.py": """\
import os
count = int(os.environ.get("FAKE_DEVICES", "8"))
def _xla_get_default_device(): return "xla:0"
def _xla_get_all_runtime_devices(): return ["TPU:%d" % n for n in range(count)]
""",
    "torch_xla/__init__.py": """\
import _XLAC
def device(): return _XLAC._xla_get_default_device()
""",
    "torch_xla/runtime.py": """\
import os, _XLAC
def device_type(): return os.environ.get("FAKE_BACKEND", "TPU").upper()
def global_runtime_device_count(): return len(_XLAC._xla_get_all_runtime_devices())
""",
}


def write_torch_xla(folder: Path) -> None:
    """As `write_jax`, of PyTorch/XLA 2.9."""
    for name, text in TORCH_XLA.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def write_jax(folder: Path) -> None:
    """Puts the library into `folder`. FAKE_BACKEND and FAKE_DEVICES say what it finds, FAKE_WAIT how many
    seconds that takes."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
