"""Reads the parameters of a model for `tpuctl check weights`, in the pinned environment.

    python weights_probe.py REQUEST RESULT

REQUEST names a function that makes parameters, or a checkpoint: safetensors, PyTorch or Orbax, each read by
its own library. RESULT is JSON: a row for each leaf, and what is wrong. `tpuctl_weights`, which lies beside
this file, is `weights.py` of the agent, under a name that no user's module has.
"""

import ctypes
import importlib.util
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import tpuctl_weights as weights


class Told(Exception):
    """What is wrong with the function or checkpoint, in words for a person."""


def main(request_path, result_path):
    end_with_parent()
    with open(request_path) as file:
        request = json.load(file)
    sys.stdout = sys.stderr
    result = {"rows": []}
    try:
        result["rows"], _ = weights.measure_all(leaves(request))
        # Who names a function says that these are fresh; a checkpoint says it itself.
        fresh = True if request["function"] else None
        result["findings"] = weights.judge(result["rows"], fresh, request["init"])
    except Told as error:
        result["error"] = str(error)
    except ImportError as error:
        result["error"] = f"the environment lacks what reads this: {error}"
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        lines = [
            each.lineno
            for each in traceback.extract_tb(error.__traceback__)
            if each.filename == request["path"]
        ]
        where = f"line {lines[-1]}: " if lines else ""
        result["error"] = f"{where}{type(error).__name__}: {str(error)[:600]}"
    with open(f"{result_path}.new", "w") as file:
        json.dump(result, file)
    os.replace(f"{result_path}.new", result_path)


def leaves(request):
    path = Path(request["path"])
    if request["function"]:
        return made_by(path, request["function"])
    if path.is_dir():
        shards = sorted(path.glob("*.safetensors"))
        if shards:
            return (pair for shard in shards for pair in safetensors_of(shard))
        return orbax_of(path)
    if path.suffix == ".safetensors":
        return safetensors_of(path)
    return torch_of(path)


def made_by(path, name):
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]
    spec = importlib.util.spec_from_file_location("weights_to_check", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise Told(f"there is no function {name} in {path.name}")
    found = function()
    if hasattr(found, "state_dict"):  # a module of PyTorch
        found = found.state_dict()
    elif "flax.nnx" in sys.modules and not isinstance(found, dict):
        nnx = sys.modules["flax.nnx"]
        found = nnx.to_pure_dict(nnx.state(found)) if isinstance(found, nnx.Module) else found
    return weights.flattened(found)


def safetensors_of(path):
    from safetensors import safe_open

    framework = "flax" if importlib.util.find_spec("jax") else "pt"
    with safe_open(str(path), framework=framework) as file:
        for name in file.keys():  # noqa: SIM118 - no mapping
            yield name, file.get_tensor(name)


def torch_of(path):
    import torch

    try:
        found = torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise Told(f"{path.name} is no checkpoint that torch.load reads with weights_only: {error}") from error
    yield from weights.flattened(found)


def orbax_of(path):
    import numpy
    import orbax.checkpoint as orbax

    reader = orbax.PyTreeCheckpointer()
    kept = path if (path / "_METADATA").exists() else path / "default"
    if not (kept / "_METADATA").exists():
        raise Told(f"{path} has neither *.safetensors nor what Orbax writes (_METADATA)")
    found = reader.metadata(str(kept.resolve()))
    tree = getattr(found, "item_metadata", found)
    tree = getattr(tree, "tree", tree)
    import jax

    arguments = jax.tree.map(lambda _: orbax.RestoreArgs(restore_type=numpy.ndarray), tree)
    yield from weights.flattened(reader.restore(str(kept.resolve()), restore_args=arguments))


def end_with_parent():
    """Dies with tpuctl, however that ends (prctl(2), PR_SET_PDEATHSIG)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
