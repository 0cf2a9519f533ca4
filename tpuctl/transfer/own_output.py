"""Files that tpuctl wrote where the code is: pages, collections, traces, exports of runs. They are no code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tpuctl.lib.names import RUN_ID

REPORT_MARK = b'<meta name="generator" content="tpuctl '
"""In the head of each page that `tpuctl report` writes."""
EXPORT_MARK = b"# Written by tpuctl export"
"""How each file for clusters begins that `tpuctl export` writes."""
EXPORT_BUNDLE = "run.json"
"""The first file of the bundle beside it."""
COLLECTION_INDEX = "INDEX.md"
"""The first file of each collection."""
HEAD_BYTES = 1 << 12
_PAGE = re.compile(rf"{RUN_ID}\.html")
_COLLECTION = re.compile(rf"{RUN_ID}-collected\.tar")
_EXPORT = re.compile(rf"{RUN_ID}\.yaml")
_BUNDLE = re.compile(rf"{RUN_ID}\.run\.tar")
_TRACE = re.compile(rf"((?:.*/)?traces/{RUN_ID})/plugins/profile/\d{{4}}(?:_\d\d){{5}}/.*", re.DOTALL)
"""What is alike in these is in the group."""
_ENDINGS = (".html", ".tar", ".yaml")
"""Of all the others, which few files have."""


def find_own_output(base: Path, names: Iterable[str]) -> dict[str, str]:
    """Of files `names` below `base` those that tpuctl wrote under the names that it chooses itself, each with
    what to say of it: itself, or the directory of the traces of its run. What only has such a name is not."""
    found = {}
    for name in names:
        if trace := _TRACE.fullmatch(name):
            found[name] = f"{trace[1]}/"
        elif name.endswith(_ENDINGS) and _is_own(base / name):
            found[name] = name
    return found


def describe_own_output(own: Iterable[str]) -> str:
    """That it is no part of the code, in words; the first three by name."""
    found = sorted(set(own))
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"not part of the code, as tpuctl wrote it: {', '.join(found[:3])}{more}"


def _is_own(path: Path) -> bool:
    return _is_page(path) or _is_collection(path) or _is_export(path)


def _is_page(path: Path) -> bool:
    return _PAGE.fullmatch(path.name) is not None and REPORT_MARK in _head(path)


def _is_collection(path: Path) -> bool:
    first = f"{COLLECTION_INDEX}\0".encode()
    return _COLLECTION.fullmatch(path.name) is not None and _head(path).startswith(first)


def _is_export(path: Path) -> bool:
    if _EXPORT.fullmatch(path.name):
        return _head(path).startswith(EXPORT_MARK)
    return _BUNDLE.fullmatch(path.name) is not None and _head(path).startswith(f"{EXPORT_BUNDLE}\0".encode())


def _head(path: Path) -> bytes:
    """Empty for what is no file, as a pipe would be waited for, and for what cannot be read."""
    if path.is_symlink() or not path.is_file():
        return b""
    try:
        with path.open("rb") as file:
            return file.read(HEAD_BYTES)
    except OSError:
        return b""
