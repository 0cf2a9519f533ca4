"""Statistics of each leaf of a model's parameters; `tpuctl check weights` runs it in the pinned environment.

    python weights_probe.py REQUEST RESULT

REQUEST names a function that makes parameters, or a checkpoint: safetensors, PyTorch or Orbax, each read by
its own library. RESULT is JSON with a row for each leaf.
"""

import ctypes
import hashlib
import importlib.util
import json
import os
import signal
import sys
import traceback
from pathlib import Path

SLICES = 512
"""A leaf of three dimensions or more is a stack of layers if its first has at most so many."""
CHUNK = 1 << 22


class Told(Exception):
    """What is wrong with the function or checkpoint, in words for a person."""


def main(request_path, result_path):
    end_with_parent()
    with open(request_path) as file:
        request = json.load(file)
    sys.stdout = sys.stderr
    result = {"rows": []}
    try:
        for name, leaf in leaves(request):
            result["rows"].append({"name": name, **measure(leaf)})
        result["done"] = True
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
    return flattened(found, "")


def flattened(tree, prefix):
    """Leaves by their path; dicts, lists and tuples are branches, and whatever JAX knows as a tree."""
    if isinstance(tree, dict):
        items = tree.items()
    elif isinstance(tree, (list, tuple)):
        items = enumerate(tree)
    elif hasattr(tree, "shape"):
        yield prefix, tree
        return
    elif "jax" in sys.modules:
        jax = sys.modules["jax"]
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            if hasattr(leaf, "shape"):
                yield f"{prefix}{jax.tree_util.keystr(path)}", leaf
        return
    else:
        return
    for key, value in items:
        yield from flattened(value, f"{prefix}/{key}".lstrip("/"))


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
    yield from flattened(found, "")


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
    yield from flattened(reader.restore(str(kept.resolve()), restore_args=arguments), "")


def measure(leaf):
    import numpy

    array = plain(leaf)
    row = {
        "shape": list(array.shape),
        "dtype": str(leaf.dtype).removeprefix("torch."),
        **statistics(numpy, array),
    }
    if array.ndim >= 3 and 1 < array.shape[0] <= SLICES:
        row["slices"] = [statistics(numpy, part) for part in array]
    return row


def plain(leaf):
    """As NumPy's array; PyTorch's bfloat16 has none, and goes through float32."""
    import numpy

    if type(leaf).__module__.partition(".")[0] == "torch":
        leaf = leaf.detach()
        return (leaf.float() if str(leaf.dtype) == "torch.bfloat16" else leaf).numpy()
    if "jax" in sys.modules:
        jax = sys.modules["jax"]
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
    return numpy.asarray(leaf)


def statistics(numpy, array):
    """In float64, by pieces; of whole numbers only the digest."""
    flat = numpy.ascontiguousarray(array).reshape(-1)
    found = {"size": int(flat.size), "digest": hashlib.sha256(flat.tobytes()).hexdigest()[:32]}
    number = flat.dtype.kind == "f" or "float" in str(flat.dtype)
    if not number or not flat.size:
        return found
    nan = infinite = zeros = count = 0
    total = squares = 0.0
    least, most = float("inf"), float("-inf")
    for at in range(0, flat.size, CHUNK):
        part = flat[at : at + CHUNK].astype(numpy.float64)
        finite = part[numpy.isfinite(part)]
        nan += int(numpy.isnan(part).sum())
        infinite += int(numpy.isinf(part).sum())
        zeros += int((part == 0).sum())
        count += finite.size
        total += float(finite.sum())
        squares += float((finite**2).sum())
        if finite.size:
            least, most = min(least, float(finite.min())), max(most, float(finite.max()))
    mean = total / count if count else 0.0
    std = max(0.0, squares / count - mean**2) ** 0.5 if count else 0.0
    equal = bool(count) and least == most
    return {**found, "nan": nan, "inf": infinite, "zeros": zeros, "mean": mean, "std": std, "equal": equal}


def end_with_parent():
    """Dies with tpuctl, however that ends (prctl(2), PR_SET_PDEATHSIG)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
