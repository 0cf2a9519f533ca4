"""Where the compiled programs of a run are kept: one directory for what would compile to the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from tpuctl.envs.spec import Backend, EnvironmentSpec

DISK = "disk"
FLAGS = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")
BELOW_HOME = "compile-cache"
"""Of `~/.tpuctl` on each host, for `compile_cache: disk`."""


BYTECODE = "tpuctl-bytecode"
"""Of an environment's folder on a host; `templates/env_install.py` has it, too."""


class CompileCache(Struct, frozen=True):
    """What tells a program of its cache: variables, and variables that name directories below `~/.tpuctl` of
    its host."""

    variables: Mapping[str, str] = field(default_factory=dict)
    directories: Mapping[str, str] = field(default_factory=dict)


def compile_cache(
    spec: EnvironmentSpec,
    key: str,
    accelerator_type: str,
    variables: Mapping[str, str],
    rank: int,
    chips: Sequence[int] = (),
) -> CompileCache:
    """The cache of the process of this rank; `variables` are all that the run sets, `chips` those that it has
    beside other runs. There is one writer: JAX writes from process 0 alone (`_cache_write` in
    jax/_src/compiler.py), PyTorch/XLA is told to only read elsewhere, and runs on other chips have another
    cache."""
    if spec.compile_cache == "off":
        return CompileCache()
    flags = "\n".join(variables.get(name, "") for name in FLAGS)
    name = f"{key}-{accelerator_type}-{hashlib.sha256(flags.encode()).hexdigest()[:8]}"
    name += f"-chip{'-'.join(map(str, chips))}" if chips else ""
    variable = cache_variable(spec)
    more = {"XLA_PERSISTENT_CACHE_READ_ONLY": "1"} if spec.backend is Backend.TORCH_XLA and rank else {}
    if spec.compile_cache == DISK:
        return CompileCache(more, {variable: f"{BELOW_HOME}/{name}"})
    return CompileCache({variable: f"{spec.compile_cache.rstrip('/')}/{name}", **more})


def cache_variable(spec: EnvironmentSpec) -> str:
    """The variable by which a program of this environment finds its cache."""
    of_torch = spec.backend is Backend.TORCH_XLA
    return "XLA_PERSISTENT_CACHE_PATH" if of_torch else "JAX_COMPILATION_CACHE_DIR"


def bytecode_directories(spec: EnvironmentSpec, key: str) -> Mapping[str, str]:
    """Where Python finds what was compiled of files that are not ours to write beside: an import of JAX takes
    3.5 CPU s without, 1 s with it. As `CompileCache.directories`."""
    return {"PYTHONPYCACHEPREFIX": f"envs/{key}/{BYTECODE}"} if spec.unmanaged is not None and key else {}


def describe_cache(loaded: int, asked: int) -> str:
    """What an attempt came to, such as `warm: 12 of 15 programs loaded`."""
    if not asked:
        return ""
    return f"{'warm' if loaded else 'cold'}: {loaded} of {asked} programs loaded"
