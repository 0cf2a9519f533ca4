"""Are weights what an initialiser makes? Judged from the statistics of each leaf, so that a dead or doubled
layer, or a wrong scale, is found before it costs a night.

Tolerances are absolute and not of sampling: draws in bfloat16 have a mean of 2 % of their deviation and 0.8 %
zeros, and a truncated normal has 0.88 of the deviation that it was given (measured with jax 0.10.2 on 512 x
2048).
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from tpuctl.errors import UsageError

NEAR = (0.8, 1.25)
"""Of the deviation that an initialiser is expected to give."""
FAR = (0.2, 5.0)
"""Of what leaves of the same name in other layers have: trained layers differ by factors, not by orders."""
SHIFT = 0.05
"""|mean| / std of a fresh matrix."""
ZEROS = 0.02
"""Share of exact zeros in a fresh matrix."""
SMALL = 256
"""Elements; statistics of fewer say little."""
FIXED = 0.02
"""The deviation of GPT-2 and many after it."""

_ZERO_IS_FINE = re.compile(r"(?i)bias|beta|lora_?b|zero|gate|scale|norm|mean|moment|mu\b|nu\b|adapter_up")
_EQUAL_IS_FINE = re.compile(r"(?i)norm|scale|gamma|bias|ln_|running_|(^|/|\.)weight_g$|temperature|alpha")
_TIED = re.compile(r"(?i)embed|wte|lm_head|unembed|logits")


class Level(StrEnum):
    """Errors are wrong for certain."""

    ERROR = "error"
    WARNING = "warning"


class Numbers(Struct, frozen=True):
    """Of a leaf, or of one layer of a stacked one. Without the floating-point fields it holds whole numbers."""

    size: int
    digest: str
    nan: int = 0
    inf: int = 0
    zeros: int = 0
    mean: float = 0.0
    std: float | None = None
    equal: bool = False


class Leaf(Numbers, frozen=True, kw_only=True):
    """One array of the parameters; `slices` where its first dimension is one of layers."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    slices: tuple[Numbers, ...] = ()


class Finding(Struct, frozen=True):
    """What is wrong with a leaf."""

    level: Level
    leaf: str
    what: str


class Initialiser(Struct, frozen=True):
    """What deviation a matrix is to have: by its name, or a fixed number."""

    name: str
    fixed: float | None = None

    def std(self, shape: Sequence[int]) -> float:
        """For a matrix or convolution whose last two dimensions are input and output."""
        window = math.prod(shape[:-2])
        inputs, outputs = shape[-2] * window, shape[-1] * window
        by_name = {
            "lecun": math.sqrt(1 / inputs),
            "he": math.sqrt(2 / inputs),
            "glorot": math.sqrt(2 / (inputs + outputs)),
        }
        return self.fixed if self.fixed is not None else by_name[self.name]


KNOWN = (*(Initialiser(name) for name in ("lecun", "he", "glorot")), Initialiser(str(FIXED), FIXED))


def parse_initialiser(words: str) -> Initialiser:
    """`lecun`, `he`, `glorot` or a number. Raises UsageError."""
    for each in KNOWN[:3]:
        if words == each.name:
            return each
    try:
        number = float(words)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise UsageError(
            f"--init {words}: no such initialiser", hint="--init lecun, he, glorot, or a number as 0.02"
        )
    return Initialiser(words, number)


def judge_weights(leaves: Sequence[Leaf], *, fresh: bool, init: Initialiser | None = None) -> list[Finding]:
    """What is wrong, errors first. `fresh`: these come from an initialiser, so mean and deviation are judged
    narrowly; else only against the other layers. With `init` every matrix must have its deviation."""
    parts = [part for leaf in leaves for part in _layers(leaf)]
    found = [finding for name, leaf, numbers in parts for finding in _of_one(name, leaf, numbers, fresh=fresh)]
    found += _doubles(parts)
    found += _outliers(parts, fresh=fresh)
    if init is not None or fresh:
        found += _unlike(leaves, init)
    found += _dtypes(leaves)
    return sorted(dict.fromkeys(found), key=lambda each: (each.level, each.leaf))


Part = tuple[str, Leaf, Numbers]


def _layers(leaf: Leaf) -> list[Part]:
    if leaf.slices:
        return [(f"{leaf.name}[{i}]", leaf, numbers) for i, numbers in enumerate(leaf.slices)]
    return [(leaf.name, leaf, leaf)]


def _is_matrix(leaf: Leaf, numbers: Numbers) -> bool:
    return len(leaf.shape) >= 2 and numbers.std is not None and numbers.size >= SMALL


def _of_one(name: str, leaf: Leaf, numbers: Numbers, *, fresh: bool) -> Iterable[Finding]:
    if numbers.nan or numbers.inf:
        yield Finding(Level.ERROR, name, f"{numbers.nan} NaN and {numbers.inf} infinite of {numbers.size}")
    if numbers.std is None or not numbers.size:
        return
    matrix = _is_matrix(leaf, numbers)
    if numbers.zeros == numbers.size:
        if matrix and not _ZERO_IS_FINE.search(leaf.name):
            yield Finding(Level.ERROR, name, "all zeros: nothing that goes through it has a gradient")
    elif numbers.equal and matrix and not _EQUAL_IS_FINE.search(leaf.name):
        yield Finding(Level.ERROR, name, f"every element is {numbers.mean:.4g}: never drawn")
    elif matrix and fresh and numbers.zeros > ZEROS * numbers.size:
        yield Finding(Level.WARNING, name, f"{numbers.zeros / numbers.size:.0%} of it are zeros")
    if matrix and fresh and not numbers.equal and numbers.std and abs(numbers.mean) > SHIFT * numbers.std:
        yield Finding(
            Level.WARNING, name, f"its mean is {numbers.mean:.3g}, {numbers.mean / numbers.std:.2f} of its std"
        )


def _doubles(parts: Sequence[Part]) -> Iterable[Finding]:
    first: dict[tuple[str, int], str] = {}
    for name, leaf, numbers in parts:
        if not _is_matrix(leaf, numbers) or numbers.equal:
            continue
        other = first.setdefault((numbers.digest, numbers.size), name)
        if other != name and not (_TIED.search(other) and _TIED.search(name)):
            yield Finding(Level.ERROR, name, f"the same values as {other}: one random key for both?")


def _families(parts: Sequence[Part]) -> Mapping[tuple[str, tuple[int, ...]], list[Part]]:
    """Layers of the same name and shape: numbers in the name do not count."""
    found: dict[tuple[str, tuple[int, ...]], list[Part]] = defaultdict(list)
    for part in parts:
        name, leaf, numbers = part
        if _is_matrix(leaf, numbers) and numbers.zeros < numbers.size and not numbers.equal:
            found[re.sub(r"\d+", "#", name), leaf.shape].append(part)
    return found


def _outliers(parts: Sequence[Part], *, fresh: bool) -> Iterable[Finding]:
    least, most = NEAR if fresh else FAR
    for members in _families(parts).values():
        if len(members) < 3:
            continue
        usual = statistics.median(numbers.std or 0.0 for _, _, numbers in members)
        for name, _, numbers in members:
            ratio = (numbers.std or 0.0) / usual if usual else 1.0
            if not least <= ratio <= most:
                others = f"the other {len(members) - 1} layers have ({usual:.3g})"
                said = f"std {numbers.std:.3g} is {ratio:.2g} of what {others}"
                yield Finding(Level.ERROR if fresh else Level.WARNING, name, said)


def _unlike(leaves: Sequence[Leaf], init: Initialiser | None) -> Iterable[Finding]:
    """Whole leaves that no initialiser gives, or not the one that was named."""
    for leaf in leaves:
        if not _is_matrix(leaf, leaf) or leaf.equal or not leaf.std or _EQUAL_IS_FINE.search(leaf.name):
            continue
        stacked = bool(leaf.slices) and len(leaf.shape) == 3
        shape = leaf.shape[1:] if stacked else leaf.shape
        ratios = {each.name: leaf.std / each.std(shape) for each in ([init] if init is not None else KNOWN)}
        if any(NEAR[0] <= ratio <= NEAR[1] for ratio in ratios.values()):
            continue
        layers = math.sqrt(leaf.shape[0])
        counted = [name for name, ratio in ratios.items() if stacked and abs(ratio * layers - 1) < SHIFT]
        name = counted[0] if counted else min(ratios, key=lambda each: abs(math.log(ratios[each])))
        said = f"std {leaf.std:.3g} is {ratios[name]:.2g} of what {name} gives"
        if counted:
            said += f": 1/sqrt({leaf.shape[0]}), as if its inputs were those of all {leaf.shape[0]} layers"
        yield Finding(Level.ERROR if init is not None else Level.WARNING, leaf.name, said)


def _dtypes(leaves: Sequence[Leaf]) -> Iterable[Finding]:
    by_family: dict[str, set[str]] = defaultdict(set)
    for leaf in leaves:
        if leaf.std is not None:
            by_family[re.sub(r"\d+", "#", leaf.name)].add(leaf.dtype)
        if leaf.dtype == "float64":
            yield Finding(Level.WARNING, leaf.name, "float64: a TPU computes it slowly, in software")
    for name, kinds in by_family.items():
        if len(kinds) > 1:
            yield Finding(Level.WARNING, name, f"layers of different types: {', '.join(sorted(kinds))}")
