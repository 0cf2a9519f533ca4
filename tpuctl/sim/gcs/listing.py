"""Lists of objects: prefixes and delimiters, globs, versions and pages, for the JSON and the XML API."""

from __future__ import annotations

import base64
import heapq
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tpuctl.sim.gcs.objects import ObjectStore
from tpuctl.sim.gcs.versions import DELETED, LIVE, NONCURRENT
from tpuctl.sim.gcs.wire import Data, invalid

PAGE_LIMIT = 1000
AFTER_ALL = 2**63 - 1
"""A generation behind every other."""


@dataclass(frozen=True)
class Listing:
    """What is asked for."""

    bucket: str
    prefix: str = ""
    delimiter: str = ""
    start: str = ""
    end: str = ""
    after: str = ""
    """Names up to this one are left out."""
    trailing_delimiter: bool = False
    glob: str = ""
    versions: bool = False
    deleted: bool = False
    folders: bool = False
    """Folders and managed folders stand among the prefixes, also those without objects."""
    limit: int = PAGE_LIMIT
    token: str = ""

    @property
    def states(self) -> tuple[str, ...]:
        if self.deleted:
            return (DELETED,)
        return (LIVE, NONCURRENT) if self.versions else (LIVE,)


@dataclass
class Page:
    items: list[Data] = field(default_factory=list)
    prefixes: dict[str, None] = field(default_factory=dict)
    token: str = ""


def list_page(store: ObjectStore, asked: Listing) -> Page:
    """One page; `token` is set when there is more. 400 for a token or glob that is none."""
    store.get_bucket(asked.bucket)
    matches = _glob(asked.glob)
    page = Page()
    last: tuple[str, int] = ("", 0)
    for name, generation, data in _rows(store, asked):
        if not name.startswith(asked.prefix) or (asked.end and name >= asked.end):
            break
        key, is_prefix = _collapse(name, asked.prefix, asked.delimiter)
        if matches and not matches.fullmatch(key):
            continue
        if not data and not is_prefix:
            continue
        shown = not is_prefix or (asked.trailing_delimiter and key == name)
        if key in page.prefixes and not shown:
            continue
        if len(page.items) + len(page.prefixes) >= asked.limit:
            page.token = _encode(*last)
            break
        if is_prefix:
            page.prefixes[key] = None
        if shown and data:
            page.items.append(json.loads(data))
        last = (key + chr(0x10FFFF), AFTER_ALL) if is_prefix and not shown else (name, generation)
    return page


def _rows(store: ObjectStore, asked: Listing) -> Iterator[tuple[str, int, str]]:
    first = max(asked.prefix, asked.start)
    begin = max((first, -1), (asked.after, AFTER_ALL) if asked.after else ("", -1), _decode(asked.token))
    rows = store.rows(asked.bucket, asked.states, begin)
    if not asked.folders:
        return rows
    both = (store.folder_rows(asked.bucket, begin[0], table) for table in ("folders", "managed_folders"))
    folders = [(name, 0, "") for names in both for name, _ in names if (name, 0) > begin]
    return heapq.merge(rows, sorted(set(folders)))


def _collapse(name: str, prefix: str, delimiter: str) -> tuple[str, bool]:
    """What a listing shows for `name`, and whether that is a common prefix instead of the object."""
    at = name.find(delimiter, len(prefix)) if delimiter else -1
    return (name, False) if at < 0 else (name[: at + len(delimiter)], True)


def _encode(name: str, generation: int) -> str:
    return base64.urlsafe_b64encode(json.dumps([name, generation]).encode()).decode()


def _decode(token: str) -> tuple[str, int]:
    """Everything up to and including this version was listed before."""
    if not token:
        return ("", -1)
    try:
        name, generation = json.loads(base64.b64decode(token, b"-_", validate=True))
        name.encode()
        return (name, min(int(generation), AFTER_ALL))
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise invalid(f"Invalid pageToken: {token}") from None


_GLOB_PARTS = re.compile(r"(\*\*/|\*\*|\*|\?|\[[!^]?[^\]]+\]|\{[^{}]*\})")


def _glob(pattern: str) -> re.Pattern[str] | None:
    """https://cloud.google.com/storage/docs/json_api/v1/objects/list#list-objects-and-prefixes-using-glob"""
    if not pattern:
        return None
    simple = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = ""
    for part in _GLOB_PARTS.split(pattern):
        if part in simple:
            text += simple[part]
        elif part.startswith("[") and _GLOB_PARTS.fullmatch(part):
            negated = part[1] in "!^"
            inner = part[2 if negated else 1 : -1].replace("\\", "\\\\").replace("[", "\\[")
            text += f"[{'^' if negated else ''}{inner}]"
        elif part.startswith("{") and _GLOB_PARTS.fullmatch(part):
            # Alternatives may have wildcards of their own.
            found = [_glob(each) for each in part[1:-1].split(",")]
            text += "(?:" + "|".join(each.pattern if each else "" for each in found) + ")"
        else:
            text += re.escape(part)
    try:
        return re.compile(text, re.DOTALL)
    except re.error:
        raise invalid(f"Invalid matchGlob: {pattern}") from None
