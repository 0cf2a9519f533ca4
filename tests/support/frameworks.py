"""Small libraries in the place of JAX and PyTorch/XLA, with the functions by which these take their devices."""

from __future__ import annotations

from pathlib import Path

FILES = {
    "jax/__init__.py": """\
import os, types
from jax._src.distributed import initialize
from jax._src import profiler, xla_bridge
place = os.environ.get("JAX_COMPILATION_CACHE_DIR")
config = types.SimpleNamespace(jax_platforms="tpu,cpu", jax_compilation_cache_dir=place)
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
import os, types
from jax._src import monitoring
def compile_or_get_cached(backend, computation):
    name = computation.operation.attributes["sym_name"].value
    place = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if place is None: return
    monitoring.record_event("/jax/compilation_cache/compile_requests_use_cache")
    if os.path.exists(os.path.join(place, name)): monitoring.record_event("/jax/compilation_cache/cache_hits")
    else: open(os.path.join(place, name), "w").close()
def compile(name):
    named = {"sym_name": types.SimpleNamespace(value="jit_" + name)}
    words = types.SimpleNamespace(attributes=named, operations=[])
    compile_or_get_cached(None, types.SimpleNamespace(operation=words, body=words))
""",
    "jax/_src/distributed.py": "def initialize(): pass\n",
    "jax/_src/xla_bridge.py": """\
import os, time
found = (os.environ.get("FAKE_BACKEND", "tpu"), int(os.environ.get("FAKE_DEVICES", "8")))
taken = []
def backends():
    time.sleep(float(os.environ.get("FAKE_WAIT", "0")))
    taken.append(found)
    return found
def backends_are_initialized(): return bool(taken)
""",
    # Writes as many bytes as FAKE_TRACE says, and says what was traced and how.
    "jax/profiler.py": "from jax._src.profiler import ProfileOptions, start_trace, stop_trace\n",
    "jax/_src/profiler.py": """\
import os, time
class ProfileOptions:
    python_tracer_level = 1
class State:
    folder = None
    def reset(self): self.folder = None
_profile_state = State()
def start_trace(log_dir, create_perfetto_link=False, create_perfetto_trace=False, profiler_options=None):
    if _profile_state.folder is not None: raise RuntimeError("Profile has already been started.")
    _profile_state.folder, _profile_state.began = str(log_dir), time.time()
    _profile_state.python = (profiler_options or ProfileOptions).python_tracer_level
def stop_trace():
    if _profile_state.folder is None: raise RuntimeError("No profile started")
    if "FAKE_FULL" in os.environ: raise OSError(28, "No space left on device")
    place = os.path.join(_profile_state.folder, "plugins", "profile", "now")
    os.makedirs(place)
    said = f"traced {time.time() - _profile_state.began:.1f} s, python {_profile_state.python}"
    with open(os.path.join(place, "host.xplane.pb"), "w") as file:
        file.write(said.ljust(int(os.environ.get("FAKE_TRACE", "0"))))
    _profile_state.reset()
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


TORCHRUN = """\
import argparse, os, subprocess, sys, time
parser = argparse.ArgumentParser()
for name in ("nnodes", "node-rank", "nproc-per-node", "master-addr", "master-port"):
    parser.add_argument("--" + name, required=True)
parser.add_argument("--no-python", action="store_true", required=True)
parser.add_argument("words", nargs=argparse.REMAINDER)
given = parser.parse_args()
count, node = int(given.nproc_per_node), int(given.node_rank)
def begin(own):
    own_names = {"LOCAL_RANK": own, "RANK": node * count + own, "LOCAL_WORLD_SIZE": count,
                 "WORLD_SIZE": int(given.nnodes) * count, "MASTER_ADDR": given.master_addr,
                 "MASTER_PORT": given.master_port}
    environ = {**os.environ, **{name: str(value) for name, value in own_names.items()}}
    return subprocess.Popen(given.words, env=environ, start_new_session=True)
processes = [begin(own) for own in range(count)]
while any(each.poll() is None for each in processes) and not any(each.poll() for each in processes):
    time.sleep(0.1)
failed = any(each.poll() for each in processes)
for each in processes:
    if failed and each.poll() is None:
        os.killpg(each.pid, 15)
    each.wait()
print("a word of torchrun")
sys.exit(failed)
"""


def write_torchrun(folder: Path) -> None:
    """Puts `torch.distributed.run` into `folder`, with as much of it as starts, ends and waits for processes as
    that of torch 2.9 does."""
    for name, text in {
        "__init__.py": "",
        "distributed/__init__.py": "",
        "distributed/run.py": TORCHRUN,
    }.items():
        (folder / "torch" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "torch" / name).write_text(text)
