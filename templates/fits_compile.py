"""Compiles one step for one TPU topology where no TPU is; `tpuctl fits` runs it in the pinned environment.

    python fits_compile.py REQUEST RESULT

REQUEST and RESULT are JSON files. RESULT is written anew at each stage, so that whoever ends this program knows
where it was. The user's module is imported here and nowhere else.
"""

import ctypes
import importlib.util
import inspect
import json
import math
import os
import resource
import signal
import sys
import time
import traceback


class Told(Exception):
    """What is wrong with the user's function, in words for a person."""


def main(request_path, result_path):
    end_with_parent()
    with open(request_path) as file:
        request = json.load(file)
    result = {"stage": "import", "seconds": {}}
    sys.stdout = sys.stderr  # what the module prints is no result

    def stage(name):
        result["stage"] = name
        result["since"] = time.time()
        write(result_path, result)

    try:
        rehearse(request, result, stage)
        result["stage"] = "done"
    except Told as error:
        line = line_in(error, request["file"]) or result.pop("defined", 0)
        result["error"] = {"kind": "told", "text": str(error), "line": line}
    except (Exception, SystemExit) as error:
        text = str(error) or type(error).__name__
        result["error"] = {
            "kind": type(error).__name__,
            "text": text[:4000],
            "line": line_in(error, request["file"]),
        }
        traceback.print_exc()
    result["cpu_s"] = time.process_time()
    result["rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    write(result_path, result)


def rehearse(request, result, stage):
    stage("import")
    began = time.monotonic()
    function = find_function(request)
    import jax
    import numpy
    from jax.experimental import topologies
    from jax.sharding import Mesh

    stage("topology")
    described = topologies.get_topology_desc(platform="tpu", **request["topology"])
    result["devices"] = len(described.devices)
    result["kind"] = described.devices[0].device_kind
    axes = request["mesh"]
    sizes = [size for _, size in axes]
    if math.prod(sizes) != len(described.devices):
        raise Told(f"this libtpu gives {len(described.devices)} devices, and the mesh has {math.prod(sizes)}")
    mesh = Mesh(numpy.array(described.devices).reshape(sizes), [name for name, _ in axes])

    stage("build")
    wants = inspect.signature(function).parameters
    result["defined"] = getattr(getattr(function, "__code__", None), "co_firstlineno", 0)
    with entered(jax, mesh):
        found = function(mesh) if wants else function()
    if not isinstance(found, tuple) or len(found) != 3:
        raise Told("it has to return three things: the step, its abstract arguments, how they are sharded")
    step, arguments, shardings = found
    if not isinstance(arguments, tuple):
        raise Told("its second result, the abstract arguments, has to be a tuple")
    if not callable(step):
        raise Told("its first result, the step, cannot be called")
    placed = place(jax, mesh, arguments, shardings, result, names_of(step, len(arguments)))
    result["seconds"]["build"] = time.monotonic() - began

    stage("trace")
    began = time.monotonic()
    jitted = step if hasattr(step, "trace") else jax.jit(step)
    with entered(jax, mesh):
        traced = jitted.trace(*placed)
        flops, unknown = count_flops(traced.jaxpr)
        result["flops"] = {"total": flops, "not_counted": sorted(unknown)}
        stage("lower")
        lowered = traced.lower()
    result["seconds"]["lower"] = time.monotonic() - began
    stage("compile")
    began = time.monotonic()
    compiled = lowered.compile(compiler_options={"xla_dump_to": request["dump"]})
    result["seconds"]["compile"] = time.monotonic() - began
    stage("analyse")
    analysed = compiled.memory_analysis()
    names = ("peak_memory", "argument_size", "output_size", "alias_size", "temp_size", "generated_code_size")
    result["memory"] = {name: getattr(analysed, f"{name}_in_bytes", None) for name in names}
    with open(request["hlo"], "w") as file:
        file.write(compiled.as_text())


def entered(jax, mesh):
    """So that constraints inside the program may name axes. The abstract mesh, since nothing can be placed on
    the devices of a topology, not even a random key; older releases enter the mesh itself."""
    use = getattr(jax.sharding, "use_abstract_mesh", None)
    return use(mesh.abstract_mesh) if use is not None else mesh


def find_function(request):
    """The user's function. Its module sees the command's directory, and its own, as a script would."""
    path, name = request["file"], request["function"]
    sys.path.insert(0, os.path.dirname(path))
    sys.argv = [path]
    spec = importlib.util.spec_from_file_location("step_to_compile", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        known = [each for each, found in vars(module).items() if inspect.isfunction(found)]
        raise Told(f"there is no function {name}; it has {', '.join(known) or 'none'}")
    return function


def names_of(step, count):
    """What the step calls its arguments."""
    try:
        names = list(inspect.signature(step).parameters)
    except (TypeError, ValueError):
        names = []
    return [names[i] if i < len(names) else f"argument {i}" for i in range(count)]


def place(jax, mesh, arguments, shardings, result, names):
    """The arguments with their shardings. What has no sharding lies on every device whole."""
    from jax.sharding import NamedSharding, PartitionSpec, Sharding

    def is_spec(each):
        return each is None or isinstance(each, (PartitionSpec, Sharding))

    def named(path):
        return names[path[0].idx] + jax.tree_util.keystr(path[1:])

    def one(path, spec, part):
        if spec is None or isinstance(spec, PartitionSpec):
            check_axes(named(path) if path else "", spec or (), mesh)
            spec = NamedSharding(mesh, spec or PartitionSpec())
        return jax.tree.map(lambda leaf: (leaf, spec), part)

    try:
        pairs = jax.tree_util.tree_map_with_path(one, shardings, arguments, is_leaf=is_spec)
    except ValueError as error:
        raise Told(f"the shardings do not go with the arguments: {error}") from error
    rows = result["arguments"] = []

    def placed(path, pair):
        leaf, sharding = pair
        name = named(path)
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise Told(f"argument {name} has no shape: give jax.ShapeDtypeStruct, or jax.eval_shape of it")
        shape = tuple(leaf.shape)
        check_divides(name, shape, sharding)
        local = sharding.shard_shape(shape)
        size = jax.numpy.dtype(leaf.dtype).itemsize if leaf.dtype != jax.dtypes.float0 else 0
        rows.append({"path": name, "shape": list(shape), "bytes": math.prod(local) * size})
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=sharding)

    def is_pair(each):
        return isinstance(each, tuple) and len(each) == 2 and isinstance(each[1], Sharding)

    return jax.tree_util.tree_map_with_path(placed, pairs, is_leaf=is_pair)


def axes_of(dimension):
    return dimension if isinstance(dimension, tuple) else (dimension,) if isinstance(dimension, str) else ()


def check_axes(name, spec, mesh):
    lacking = [axis for dimension in spec for axis in axes_of(dimension) if axis not in mesh.shape]
    if lacking:
        raise Told(f"argument {name}: the mesh has no axis {lacking[0]!r}, only {', '.join(mesh.shape)}")


def check_divides(name, shape, sharding):
    """A clear word where a dimension does not divide: JAX's own names no argument."""
    spec, mesh = getattr(sharding, "spec", None), getattr(sharding, "mesh", None)
    if spec is None:
        return
    if len(spec) > len(shape):
        raise Told(f"argument {name} has {len(shape)} dimensions, and its sharding {spec} has {len(spec)}")
    for number, axes in enumerate(spec):
        names = axes_of(axes)
        parts = math.prod(mesh.shape[axis] for axis in names)
        if shape[number] % parts:
            raise Told(
                f"argument {name} of shape {list(shape)}: dimension {number} of {shape[number]} does not "
                f"divide by {parts}, the devices of {' x '.join(names)}"
            )


def count_flops(closed):
    """Operations of the matrix products and convolutions of one step over all devices, loops by their trips;
    and the kinds of loops and kernels whose number nobody knows (counted once, or not at all)."""
    unknown = set()
    return flops_of(getattr(closed, "jaxpr", closed), unknown), unknown


def flops_of(jaxpr, unknown):
    total = 0
    for each in jaxpr.eqns:
        name, params = each.primitive.name, each.params
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            left = each.invars[0].aval.shape
            total += 2 * math.prod(each.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)
        elif name == "conv_general_dilated":
            kernel = each.invars[1].aval.shape
            outputs = kernel[params["dimension_numbers"].rhs_spec[0]]
            total += 2 * math.prod(each.outvars[0].aval.shape) * math.prod(kernel) // max(1, outputs)
        elif name == "scan":
            total += params["length"] * flops_of(params["jaxpr"].jaxpr, unknown)
        elif name == "while":
            body = flops_of(params["body_jaxpr"].jaxpr, unknown)
            if body:
                unknown.add("while")
            total += body
        elif name == "cond":
            total += max(flops_of(branch.jaxpr, unknown) for branch in params["branches"])
        elif name == "shard_map":
            total += params["mesh"].size * flops_of(params["jaxpr"], unknown)
        elif name == "pallas_call":
            estimate = params.get("cost_estimate")
            if estimate is None:
                unknown.add("pallas_call")
            total += estimate.flops if estimate is not None else 0
        else:
            for inner in inner_jaxprs(params):
                total += flops_of(inner, unknown)
    return total


def inner_jaxprs(params):
    for value in params.values():
        for each in value if isinstance(value, (tuple, list)) else (value,):
            each = getattr(each, "jaxpr", each)
            if hasattr(each, "eqns"):
                yield each


def line_in(error, path):
    """The innermost line of the user's file that the error came through; 0 where there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if os.path.abspath(frame.filename) == path]
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno or 0
    return lines[-1] if lines else 0


def end_with_parent():
    """Dies with tpuctl, however that ends (prctl(2), PR_SET_PDEATHSIG)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def write(path, result):
    with open(f"{path}.new", "w") as file:
        json.dump(result, file)
    os.replace(f"{path}.new", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
