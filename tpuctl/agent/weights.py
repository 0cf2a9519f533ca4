"""Are weights what an initialiser makes? Measured and judged leaf by leaf, so that a dead or doubled layer, or
a wrong scale, is found before it costs a night.

It runs where the parameters are: beside `weights_probe.py` for `tpuctl check weights`, and in the processes of
a run for `run --check`. Tolerances are absolute and not of sampling: draws in bfloat16 have a mean of 2 % of
their deviation and 0.8 % zeros, and a truncated normal has 0.88 of the deviation that it was given (measured
with jax 0.10.2 on 512 x 2048).
"""

import hashlib
import math
import re
import statistics
import sys
import time

SLICES = 512  # a leaf of three dimensions or more is a stack of layers if its first has at most so many
CHUNK = 1 << 22
NEAR = (0.8, 1.25)  # of the deviation that an initialiser is expected to give
FAR = (0.2, 5.0)  # of that of other layers: trained ones differ by factors, not by orders
SHIFT = 0.05  # |mean| / std of a fresh matrix
ZEROS = 0.02  # share of exact zeros in a fresh matrix
SMALL = 256  # elements; statistics of fewer say little
FRESH = 0.75  # share of the matrices that look drawn, from which on all are judged as such
FIXED = 0.02  # the deviation of GPT-2 and many after it

ZERO_IS_FINE = re.compile(r"(?i)bias|beta|lora_?b|zero|gate|scale|norm|mean|adapter_up")
EQUAL_IS_FINE = re.compile(r"(?i)norm|scale|gamma|bias|ln_|running_|(^|/|\.)weight_g$|temperature|alpha")
TIED = re.compile(r"(?i)embed|wte|lm_head|unembed|logits")
OF_OPTIMIZER = re.compile(r"(?i)\bopt_?state|optimizer|exp_avg|momentum|moment|\bmu\b|\bnu\b|square|trace")
TORCH = re.compile(r"(^|[/.])weight$")  # PyTorch's, whose first dimension is that of the outputs
NUMBER = re.compile(r"\d+")


def flattened(tree, prefix=""):
    """Leaves by their path; dicts, lists and tuples are branches, and whatever JAX knows as a tree."""
    if isinstance(tree, dict):
        items = list(tree.items())
    elif isinstance(tree, (list, tuple)):
        items = list(enumerate(tree))
    elif hasattr(tree, "shape"):
        yield prefix, tree
        return
    elif "jax" in sys.modules:
        jax = sys.modules["jax"]
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            if hasattr(leaf, "shape"):
                yield prefix + jax.tree_util.keystr(path), leaf
        return
    else:
        return
    for key, value in items:
        for pair in flattened(value, ("%s/%s" % (prefix, key)).lstrip("/")):
            yield pair


# --- measure


def measure_all(leaves, limit_s=math.inf):
    """A row for each leaf, and whether time was left for all."""
    began = time.monotonic()
    rows: list = []
    for name, leaf in leaves:
        if time.monotonic() - began > limit_s:
            return rows, False
        rows.append(dict(measure(leaf), name=name))
    return rows, True


def measure(leaf):
    array = plain(leaf)
    kind = str(leaf.dtype)
    row = {"shape": list(leaf.shape), "dtype": kind[6:] if kind.startswith("torch.") else kind}
    row.update(statistics_of(array))
    if array.ndim >= 3 and 1 < array.shape[0] <= SLICES and array.shape[0] == leaf.shape[0]:
        row["slices"] = [statistics_of(part) for part in array]
    return row


def plain(leaf):
    """As NumPy's array; PyTorch's bfloat16 has none, and goes through float32. Of one that lies on the devices
    of several processes, what one device of this process has."""
    import numpy  # type: ignore[import-not-found]

    if type(leaf).__module__.partition(".")[0] == "torch":
        leaf = leaf.detach().cpu()
        return (leaf.float() if str(leaf.dtype) == "torch.bfloat16" else leaf).numpy()
    if "jax" in sys.modules:
        jax = sys.modules["jax"]
        if isinstance(leaf, jax.Array):
            if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                leaf = jax.random.key_data(leaf)
            if not leaf.is_fully_addressable:
                leaf = leaf.addressable_shards[0].data
    return numpy.asarray(leaf)


def statistics_of(array):
    """In float64, by pieces; of whole numbers only the digest."""
    import numpy

    flat = numpy.ascontiguousarray(array).reshape(-1)
    found = {"size": int(flat.size), "digest": hashlib.sha256(flat.tobytes()).hexdigest()[:32]}
    number = flat.dtype.kind == "f" or "float" in str(flat.dtype)
    if not number or not flat.size:
        return found
    nan = infinite = zeros = count = 0
    total = squares = 0.0
    least, most = math.inf, -math.inf
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
    return dict(found, nan=nan, inf=infinite, zeros=zeros, mean=mean, std=std, equal=equal)


# --- judge


class Part:
    """A leaf, or one layer of a stack. Without a deviation it holds whole numbers."""

    def __init__(self, name, leaf, numbers):
        self.name, self.leaf = name, leaf
        self.size, self.digest = numbers["size"], numbers["digest"]
        self.bad = (numbers.get("nan", 0), numbers.get("inf", 0))
        self.zeros, self.mean = numbers.get("zeros", 0), numbers.get("mean", 0.0)
        self.std, self.equal = numbers.get("std"), numbers.get("equal", False)
        # What is left is wide enough for its statistics to mean something.
        self.matrix = (
            len(leaf["shape"]) >= 2
            and self.std is not None
            and self.size >= SMALL
            and not OF_OPTIMIZER.search(leaf["name"])
        )
        self.family = (NUMBER.sub("#", name), tuple(leaf["shape"]))


def judge(rows, fresh=None, init=None):
    """What is wrong, errors first: dicts of `level`, `leaf` and `what`.

    `fresh`: these come from an initialiser, so mean and deviation are judged narrowly, else only against the
    other layers; None where the parameters have to say that. With `init`, a row of `initialisers`, every matrix
    must have its deviation.
    """
    parts = [part for row in rows for part in layers_of(row)]
    if fresh is None:
        fresh = init is not None or look_fresh(parts)
    found = [each for part in parts for each in judge_one(part, fresh)]
    found += doubled(parts)
    found += outliers(parts, fresh)
    if init is not None or fresh:
        told = {leaf for level, leaf, _ in found if level == "error"}
        found += [each for each in unlike(rows, init) if each[1] not in told]
    found += dtypes(rows)
    unique = {(level, leaf, what) for level, leaf, what in found}
    return [{"level": level, "leaf": leaf, "what": what} for level, leaf, what in sorted(unique)]


def layers_of(row):
    slices = row.get("slices") or []
    if slices:
        return [Part("%s[%d]" % (row["name"], i), row, numbers) for i, numbers in enumerate(slices)]
    return [Part(row["name"], row, row)]


def look_fresh(parts):
    """Whether most matrices have the mean and deviation of an initialiser: trained ones have drifted."""
    matrices = [part for part in parts if part.matrix and not part.equal and part.std]
    drawn = [
        part
        for part in matrices
        if abs(part.mean) <= SHIFT * part.std and any(near(part.std / std) for _, std in known(part.leaf))
    ]
    return bool(matrices) and len(drawn) >= FRESH * len(matrices)


def near(ratio):
    return NEAR[0] <= ratio <= NEAR[1]


def initialisers(shape, outputs_first):
    """Names and deviations of those that are in use, for a matrix or convolution."""
    if outputs_first:
        window, outputs, inputs = math.prod(shape[2:]), shape[0], shape[1]
    else:
        window, inputs, outputs = math.prod(shape[:-2]), shape[-2], shape[-1]
    inputs, outputs = inputs * window, outputs * window
    return [
        ("lecun", math.sqrt(1 / inputs)),
        ("he", math.sqrt(2 / inputs)),
        ("glorot", math.sqrt(2 / (inputs + outputs))),
        ("torch", math.sqrt(1 / (3 * inputs))),  # the default of its linear layers and convolutions
    ]


def known(leaf, init=None):
    """(name, deviation) of what may have drawn this leaf, or of the one that was named."""
    shape = leaf["shape"][1:] if is_stack(leaf) else leaf["shape"]
    torch = bool(TORCH.search(leaf["name"]))
    found = [*initialisers(shape, torch), (str(FIXED), FIXED)]
    if init is not None:
        return [each for each in found if each[0] == init] or [(init, float(init))]
    if TIED.search(leaf["name"]):  # a table: drawn for its features, or from a normal distribution as it is
        found += [*initialisers(shape, not torch), ("1", 1.0)]
    return found


def is_stack(leaf):
    return len(leaf["shape"]) == 3 and 1 < leaf["shape"][0] <= SLICES


def judge_one(part, fresh):
    if any(part.bad):
        yield "error", part.name, "%d NaN and %d infinite of %d" % (*part.bad, part.size)
    if not part.matrix:
        return
    name = part.leaf["name"]
    if part.zeros == part.size:
        if not ZERO_IS_FINE.search(name):
            yield "error", part.name, "all zeros: nothing that goes through it has a gradient"
    elif part.equal and not EQUAL_IS_FINE.search(name):
        yield "error", part.name, "every element is %.4g: never drawn" % part.mean
    elif fresh and part.zeros > ZEROS * part.size:
        yield "warning", part.name, "{:.0%} of it are zeros".format(part.zeros / part.size)
    if fresh and not part.equal and part.std and abs(part.mean) > SHIFT * part.std:
        yield "warning", part.name, "its mean is %.3g, %.2f of its std" % (part.mean, part.mean / part.std)


def doubled(parts):
    first: dict = {}
    for part in parts:
        if part.matrix and not part.equal:
            other = first.setdefault((part.digest, part.size), part.name)
            if other != part.name and not (TIED.search(other) and TIED.search(part.name)):
                yield "error", part.name, "the same values as %s: one random key for both?" % other


def outliers(parts, fresh):
    """Layers of the same name and shape, where numbers in the name do not count."""
    families: dict = {}
    for part in parts:
        if part.matrix and part.zeros < part.size and not part.equal:
            families.setdefault(part.family, []).append(part)
    least, most = NEAR if fresh else FAR
    for members in families.values():
        if len(members) < 3:
            continue
        usual = statistics.median(part.std for part in members)
        for part in members:
            ratio = part.std / usual if usual else 1.0
            if not least <= ratio <= most:
                others = "the other %d layers have (%.3g)" % (len(members) - 1, usual)
                said = "std %.3g is %.2g of what %s" % (part.std, ratio, others)
                yield "error" if fresh else "warning", part.name, said


def unlike(rows, init):
    """Whole leaves that no initialiser gives, or not the one that was named."""
    for row in rows:
        whole = Part(row["name"], row, row)
        if not whole.matrix or whole.equal or not whole.std or EQUAL_IS_FINE.search(row["name"]):
            continue
        ratios = {name: whole.std / std for name, std in known(row, init)}
        if any(near(ratio) for ratio in ratios.values()):
            continue
        count = row["shape"][0]
        counted = [
            name
            for name, ratio in ratios.items()
            if is_stack(row) and abs(ratio * math.sqrt(count) - 1) < SHIFT
        ]
        name = counted[0] if counted else min(ratios, key=lambda each: abs(math.log(ratios[each])))
        said = "std %.3g is %.2g of what %s gives" % (whole.std, ratios[name], name)
        if counted:
            said += ": 1/sqrt(%d), as if its inputs were those of all %d layers" % (count, count)
        yield "error" if init is not None else "warning", row["name"], said


def dtypes(rows):
    families: dict = {}
    for row in rows:
        if row.get("std") is not None:
            families.setdefault(NUMBER.sub("#", row["name"]), set()).add(row["dtype"])
        if row["dtype"] == "float64":
            yield "warning", row["name"], "float64: a TPU computes it slowly, in software"
    for name, kinds in families.items():
        if len(kinds) > 1:
            yield "warning", name, "layers of different types: %s" % ", ".join(sorted(kinds))
