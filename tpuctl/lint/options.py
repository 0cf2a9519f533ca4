"""What was asked for, on the command line and in `[tool.tpuctl.lint]` of pyproject.toml."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import fields, replace

from tpuctl.errors import BadConfigError, TpuctlError
from tpuctl.lib.codec import parse_toml
from tpuctl.lib.input_files import CONFIG_LIMIT, read_text
from tpuctl.lib.text import suggest
from tpuctl.lint.rules import LintBackend, check_code

FILE = "pyproject.toml"
TABLE = "[tool.tpuctl.lint]"


class LintOptions(Struct, frozen=True):
    """`exclude`: patterns of paths, as seen from the folder of the file that says them."""

    backend: LintBackend | None = None
    port: bool = False
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def over(self, file: LintOptions) -> LintOptions:
        """What the command line says, and the file where it says nothing; what is ignored adds up."""
        return LintOptions(
            self.backend or file.backend,
            self.port or file.port,
            self.select or file.select,
            (*self.ignore, *file.ignore),
            (*self.exclude, *file.exclude),
        )

    def for_environment(self, backend: LintBackend | None) -> LintOptions:
        """With the backend of an environment, where nobody names one."""
        return self if self.backend is not None else replace(self, backend=backend)


def find_options(start: Path) -> tuple[LintOptions, Path]:
    """The options of the nearest pyproject.toml in or above a folder that has the table, and its folder; else
    none, and `start`.

    Raises BadConfigError.
    """
    for folder in (start, *start.parents):
        path = folder / FILE
        if path.is_file():
            table = _table(path)
            if table is not None:
                return parse_options(table, path), folder
    return LintOptions(), start


def _table(path: Path) -> Any:
    try:
        content = parse_toml(read_text(path, CONFIG_LIMIT))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadConfigError(f"cannot read {path}: {why}") from error
    tool = content.get("tool")
    own = tool.get("tpuctl") if isinstance(tool, dict) else None
    return own.get("lint") if isinstance(own, dict) else None


def parse_options(table: Any, path: Path) -> LintOptions:
    """Raises BadConfigError, with the key that is wrong."""
    known = [each.name for each in fields(LintOptions)]
    for key in table if isinstance(table, dict) else ():
        if key not in known:
            near = suggest(key, known)
            guess = f"did you mean {near}? " if near else ""
            raise BadConfigError(
                f"{path}: {TABLE} has no key {key!r}", hint=f"{guess}one of: {', '.join(known)}"
            )
    try:
        options = msgspec.convert(table, LintOptions)
        for name in ("select", "ignore"):
            for word in getattr(options, name):
                check_code(word, name)
    except (msgspec.ValidationError, TpuctlError) as error:
        raise BadConfigError(f"{path}: {TABLE}: {error}", hint=getattr(error, "hint", None)) from error
    return options


def is_excluded(path: Path, folder: Path, patterns: Sequence[str]) -> bool:
    """Whether a pattern fits a path below `folder`, or a folder that it is in."""
    try:
        parts = path.absolute().relative_to(folder.absolute()).parts
    except ValueError:
        return False
    names = ["/".join(parts[:size]) for size in range(1, len(parts) + 1)]
    return any(fnmatch(name, pattern.rstrip("/")) for pattern in patterns for name in names)


def split_codes(words: Sequence[str]) -> tuple[str, ...]:
    """Codes as they are typed: repeated, or with commas."""
    return tuple(code.strip() for word in words for code in word.split(",") if code.strip())
