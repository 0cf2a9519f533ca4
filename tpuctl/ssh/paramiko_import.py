"""Imports of a library without those of its own imports that it does not need."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path

METADATA = "importlib.metadata"


@contextlib.contextmanager
def absent(module: str) -> Iterator[None]:
    """`import module` fails meanwhile: None in sys.modules says that (Python reference, The import system)."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


@contextlib.contextmanager
def knowing_version(package: str) -> Iterator[None]:
    """`importlib.metadata` meanwhile knows the version of `package` without being imported, from the name of
    the folder beside the package (PyPA specification "Recording installed projects"). All else that it is asked
    for comes from the real one."""
    version = _version_beside(package)
    if version is None or METADATA in sys.modules:
        yield
        return
    stand_in = types.ModuleType(METADATA)

    def real() -> types.ModuleType:
        if sys.modules.get(METADATA) is stand_in:
            del sys.modules[METADATA]
        return importlib.import_module(METADATA)

    vars(stand_in).update(
        version=lambda name: version if name == package else real().version(name),
        __getattr__=lambda attribute: getattr(real(), attribute),
    )
    sys.modules[METADATA] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(METADATA) is stand_in:
            del sys.modules[METADATA]


def _version_beside(package: str) -> str | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    found = list(Path(spec.origin).parents[1].glob(f"{package}-*.dist-info"))
    return found[0].stem.partition("-")[2] if len(found) == 1 else None
