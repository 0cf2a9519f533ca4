"""The module `sitecustomize` of a run's processes (see `join.py`): has frameworks tell what they do in them.

It imports no framework. When a program imports one by itself, the function with which that takes its devices is
wrapped: a file says since when a process waits for them, and then which ones it has. Of all else PARTS tell.
"""

import os
import sys
import time

FOLDER = "TPUCTL_JOIN"  # where the files go

if FOLDER in os.environ and sys.version_info >= (3, 6):
    from contextlib import suppress  # which the agent, that reads only names here, need not wait for

PLATFORMS = "TPUCTL_JOIN_PLATFORMS"  # the JAX_PLATFORMS with which the run was started
STACKS = "stacks.txt"  # beside them; where Python writes what each thread does, for who asks by STACKS_SIGNAL
STACKS_SIGNAL = 45  # a real-time signal that nothing known uses, and that ends who does not catch it
NO_DEVICES = "TPUCTL_JOIN_NO_DEVICES"  # nobody asks on what it computes
WEIGHTS = "TPUCTL_JOIN_WEIGHTS"  # its parameters are looked at once; `strict` ends it where they are wrong
JOINT = "TPUCTL_JOIN_JOINT"  # it has its chips together with the other processes of all hosts
# With one of these set a process is meant to have only some of the chips.
BOUNDS = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "TPU_PROCESS_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS")
OWN = "tpuctl_"
TAKEN = "devices"  # no module: a framework has taken them
PARTS = (
    ("tpuctl_compile_hook", ("jax._src.compiler", "jax._src.monitoring", "_XLAC"), FOLDER),
    ("tpuctl_trace_hook", (TAKEN, "jax._src.profiler", "torch_xla.debug.profiler"), FOLDER),
    (
        "tpuctl_weights_hook",
        ("torch.optim.optimizer", "flax.training.train_state", "flax.nnx.training.optimizer"),
        WEIGHTS,
    ),
)
"""Modules beside this one: what follows OWN in their names is their file in the agent. Each is named with the
modules that it waits for, and the variable without which it is left out. Once a program imported one of these
modules, `hook(module, note, load_beside)` of the part is called; what it raises is dropped."""


def begin():
    folder = os.environ.get(FOLDER)
    if folder is None:
        return
    if sys.version_info < (3, 6):
        sys.path.remove(folder)
        run_hidden_of_old()
        return
    sys.meta_path.insert(0, Finder())
    with suppress(Exception):  # such as a full disk
        tell_stacks(folder)
    if folder in sys.path:
        sys.path.remove(folder)
    run_hidden()


def tell_stacks(folder):
    """Has Python itself say what its threads do, also while a call does not return."""
    import faulthandler

    handle = os.open(os.path.join(folder, STACKS), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(STACKS_SIGNAL, file=handle, all_threads=True)


def run_hidden():
    """The sitecustomize of the host or environment, which stands behind this one."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


def run_hidden_of_old():
    """The same for a Python that no framework supports, such as 2.7: nothing else is done there."""
    own = sys.modules.pop("sitecustomize")
    try:
        __import__("sitecustomize")
    except ImportError:
        sys.modules["sitecustomize"] = own


class Finder:
    """Finds nothing itself; has modules of HOOKS changed once they are there."""

    def find_spec(self, name, path=None, target=None):
        hooks = HOOKS.get(name)
        if hooks is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)  # old ones have none
            spec = find and find(name, path, target)
            if spec is not None:
                with suppress(AttributeError):  # a loader that cannot be changed: nothing is said
                    change(spec.loader, hooks)
                return spec
        return None


def change(loader, hooks):
    execute = loader.exec_module

    def execute_and_hook(module):
        execute(module)
        run_hooks(module, hooks)

    loader.exec_module = execute_and_hook


def run_hooks(module, hooks):
    for hook in hooks:
        with suppress(Exception):  # a release that is made differently must go on working
            hook(module)


def wrap(module, names, found=None):
    """Notes when the first of these functions of a module is first called, and what `found` tells of devices
    after it took them. A release need not have them all."""
    state = {"calls": 0}
    for name in names:
        if hasattr(module, name):
            wrap_one(module, name, found, state)


def wrap_one(module, name, found, state):
    function = getattr(module, name)

    def wrapped(*arguments, **named):
        state["calls"] += 1
        if state["calls"] > 1:
            return function(*arguments, **named)
        try:
            say({"waits": True, "since": time.time()})
            result = function(*arguments, **named)
        except BaseException:
            say({"waits": False})
            state["calls"] = 0
            raise
        with suppress(Exception):  # as above
            say(dict(found() if found else {}, waits=False))
        run_hooks(module, HOOKS.get(TAKEN, ()) if found else ())
        return result

    wrapped.__dict__.update(getattr(function, "__dict__", {}))
    wrapped.__name__, wrapped.__doc__ = name, function.__doc__
    setattr(module, name, wrapped)


told = {}  # type: dict


def say(what):
    """Notes how it stands with devices, if anybody asks."""
    if NO_DEVICES not in os.environ:
        note(what)


def note(what):
    """Writes down how this process stands. A full disk is no reason to disturb it."""
    import json

    pid = os.getpid()
    if told.get("pid") != pid:  # the first word, also of a fork
        told.clear()
        told.update(pid=pid, bounded=JOINT not in os.environ and any(name in os.environ for name in BOUNDS))
        if os.environ.get("TPUCTL_LOCAL_WORLD_SIZE", "1") != "1":
            told.update(process=int(os.environ["TPUCTL_LOCAL_RANK"]))
    told.update(what)
    path = os.path.join(os.environ[FOLDER], "%d.json" % pid)
    with suppress(OSError):
        with open(path + ".new", "w") as file:
            json.dump(told, file)
        os.rename(path + ".new", path)


def found_by_jax():
    jax = sys.modules["jax"]
    platforms = jax.config.jax_platforms or ""
    return {
        "backend": jax.default_backend(),
        "devices": jax.device_count(),
        # Such as a process that loads data beside the one that trains, and wants no chips.
        "chosen": platforms != os.environ.get(PLATFORMS, "") and "tpu" not in platforms and platforms != "",
    }


def found_by_torch_xla():
    runtime = sys.modules["torch_xla.runtime"]
    count = runtime.global_runtime_device_count()
    return {"backend": runtime.device_type().lower(), "devices": count, "chosen": False}


# Of the library below PyTorch/XLA those that take devices. `torch_xla.device` and `xm.xla_device` come to them,
# a program with SPMD where it makes its mesh, and one that only names the device "xla" with its first step.
OF_TORCH_XLA = (
    "_xla_get_all_devices",
    "_xla_get_all_runtime_devices",
    "_xla_get_default_device",
    "_xla_get_devices",
    "_xla_num_devices",
    "_xla_num_runtime_devices",
    "_xla_real_devices",
)
DEVICES = {
    # JAX waits for the other processes in `initialize`, and for chips in `backends`.
    "jax._src.distributed": lambda module: wrap(module, ["initialize"]),
    "jax._src.xla_bridge": lambda module: wrap(module, ["backends"], found=found_by_jax),
    "_XLAC": lambda module: wrap(module, OF_TORCH_XLA, found=found_by_torch_xla),
}
HOOKS = {name: [hook] for name, hook in DEVICES.items()}


def load_beside(name):
    """A module that lies beside this file, where it is no part of the program's path."""
    if name not in loaded:
        from importlib.util import module_from_spec, spec_from_file_location

        spec = spec_from_file_location(name, os.path.join(os.environ[FOLDER], name + ".py"))
        if spec is None or spec.loader is None:
            raise ImportError(name)
        loaded[name] = module_from_spec(spec)
        spec.loader.exec_module(loaded[name])
    return loaded[name]


loaded = {}  # type: dict


def hook_part(part):
    return lambda module: load_beside(part).hook(module, note, load_beside)


for each, names, variable in PARTS:
    if variable in os.environ:
        for name in names:
            HOOKS.setdefault(name, []).append(hook_part(each))

if __name__ == "sitecustomize":
    begin()
