"""Finds the Python files below paths, and which of them an import means."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tpuctl.errors import NotFoundError, UsageError

MAX_FILES = 20_000
"""More than the largest environment with its packages has; beyond it something else is meant."""
MAX_REACH = 1_000
"""Files that a launch looks at, which takes 10 s at most; `tpuctl lint` looks at all."""
FILE_LIMIT = 2 << 20
"""Bytes of one file: what people write has a tenth of it at most, the rest is data."""
_NOT_ENTERED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})


def list_files(paths: Sequence[Path], excluded: Callable[[Path], bool]) -> list[Path]:
    """Every `.py` below the paths, each once, in order. Links to folders are not followed.

    Raises NotFoundError, UsageError for what is no Python or for too many.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise NotFoundError(f"there is no {path}", hint="tpuctl lint PATH: a file, or a folder")
        if path.is_dir():
            for each in _below(path):
                if not excluded(each):
                    found[each] = None
                if len(found) > MAX_FILES:
                    raise UsageError(
                        f"there are more than {MAX_FILES} files of Python below {path}",
                        hint="name the folder of the program: tpuctl lint src",
                    )
        elif path.suffix == ".py":
            found[path] = None
        else:
            raise UsageError(f"{path} is no .py file", hint="tpuctl lint PATH: a file, or a folder")
    return list(found)


def _below(folder: Path) -> Iterator[Path]:
    """Without hidden folders, environments and what was built."""
    for root, folders, names in os.walk(folder):
        own = [each for each in sorted(folders) if not each.startswith(".") and each not in _NOT_ENTERED]
        folders[:] = [each for each in own if not Path(root, each, "pyvenv.cfg").exists()]
        yield from (Path(root, name) for name in sorted(names) if name.endswith(".py"))


class ModuleFinder:
    """Which file an import means: as seen from the folders around the one that imports, up to `top`."""

    def __init__(self, top: str, exists: Callable[[str], bool]) -> None:
        self._top = top
        self._exists = exists
        self._found: dict[tuple[str, str], tuple[str, str] | None] = {}

    def __call__(self, name: str, importer: str) -> tuple[str, str] | None:
        """The file of an imported name, such as `pkg.mod.function`, and what is left of the name."""
        folder = importer.rpartition("/")[0]
        asked = (name, folder)
        if asked not in self._found:
            self._found[asked] = self._find(name, folder)
        return self._found[asked]

    def _find(self, name: str, folder: str) -> tuple[str, str] | None:
        bare = name.lstrip(".")
        level = len(name) - len(bare)
        parts = bare.split(".") if bare else []
        for start in self._starts(folder, level):
            for size in range(len(parts), -1 if level else 0, -1):
                stem = "/".join((start, *parts[:size]))
                for path in (f"{stem}.py", f"{stem}/__init__.py"):
                    if self._exists(path):
                        return path, ".".join(parts[size:])
        return None

    def _starts(self, folder: str, level: int) -> Iterator[str]:
        if level:
            for _ in range(level - 1):
                folder = folder.rpartition("/")[0]
            yield folder
            return
        while folder.startswith(self._top):
            yield folder
            yield f"{folder}/src"
            if folder == self._top:
                return
            folder = folder.rpartition("/")[0]


def top_of(paths: Sequence[Path], folder: Path) -> Path:
    """The folder in which all of these are, and beyond which no import of theirs is looked for."""
    return Path(os.path.commonpath([folder.absolute(), *(each.absolute() for each in paths)]))
