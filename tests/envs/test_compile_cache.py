"""Where compiled programs are kept: what compiles to the same shares a directory, nothing else does."""

from __future__ import annotations

from typing import Any

import pytest

from tpuctl.envs.compile_cache import CompileCache, bytecode_directories, compile_cache, describe_cache
from tpuctl.envs.spec import Backend, EnvironmentSpec, Unmanaged

JAX, TORCH = "JAX_COMPILATION_CACHE_DIR", "XLA_PERSISTENT_CACHE_PATH"


def cache(where: str, *, rank: int = 0, backend: Backend = Backend.JAX, **changes: Any) -> CompileCache:
    spec = EnvironmentSpec("e", ("3.12",), backend=backend, compile_cache=where)
    values: dict[str, Any] = {"key": "k1", "accelerator_type": "v4-8", "variables": {}, **changes}
    return compile_cache(spec, rank=rank, **values)


def test_without_one_a_program_is_told_nothing() -> None:
    assert cache("off") == CompileCache()


def test_in_a_bucket_it_is_the_same_for_all_hosts() -> None:
    place = cache("gs://b/cache/").variables[JAX]
    assert place.startswith("gs://b/cache/k1-v4-8-")
    assert cache("gs://b/cache", rank=3).variables == {JAX: place}


@pytest.mark.parametrize(
    "changes",
    [
        {"key": "k2"},
        {"accelerator_type": "v4-16"},
        {"variables": {"XLA_FLAGS": "--a"}},
        {"variables": {"LIBTPU_INIT_ARGS": "--a"}},
    ],
)
def test_what_compiles_to_something_else_has_another_directory(changes: dict[str, Any]) -> None:
    assert cache("disk", **changes).directories[JAX] != cache("disk").directories[JAX]
    assert cache("disk", variables={"SEED": "1"}) == cache("disk")


def test_only_the_first_process_of_torch_writes() -> None:
    first, second = (cache("disk", rank=rank, backend=Backend.TORCH_XLA) for rank in (0, 1))
    assert first.variables == {}
    assert second.variables == {"XLA_PERSISTENT_CACHE_READ_ONLY": "1"}
    assert first.directories == second.directories
    assert first.directories[TORCH].startswith("compile-cache/k1-v4-8-")


def test_what_was_loaded_is_warm() -> None:
    assert describe_cache(0, 0) == ""
    assert describe_cache(0, 3) == "cold: 0 of 3 programs loaded"
    assert describe_cache(2, 3) == "warm: 2 of 3 programs loaded"


def test_python_keeps_what_it_compiles_of_others_files_in_the_environment_of_the_host() -> None:
    own = EnvironmentSpec("e", ("3.12",))
    theirs = EnvironmentSpec("e", ("3.12",), unmanaged=Unmanaged("/mnt/venv", "a" * 64))
    assert bytecode_directories(own, "k1") == {}
    assert bytecode_directories(theirs, "k1") == {"PYTHONPYCACHEPREFIX": "envs/k1/tpuctl-bytecode"}
