"""The index of what was collected: what is in the file, what is missing and why, and how each is opened. Pure.

A person or an assistant reads it before anything else, so it comes first in the file, as Markdown and as JSON,
and begins with what is known of how the run stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.lib.codec import to_data
from tpuctl.lib.text import common_cause, counted, fold_workers, sized
from tpuctl.transfer.own_output import COLLECTION_INDEX
from tpuctl.transfer.tree import Entry, TreeFile, TreeLink

INDEX_NAME, DATA_NAME = COLLECTION_INDEX, "index.json"
SCHEMA = 1
FILES_MAX = 20_000
"""Files of one folder of a host: a run that compiles without end dumps more."""
COUNTS = ("files", "size_bytes", "cut_files", "cut_bytes", "older_files")


class Item(Struct, frozen=True):
    """Something that is in the file, at `path`: a file, or a folder with `files`. Of what was there
    `cut_files` with `cut_bytes` are not in it, for `cut_why`, and `older_files` that are hardly of the run."""

    path: str
    what: str
    opens: str
    worker: int | None = None
    attempt: int | None = None
    files: int = 1
    size_bytes: int = 0
    cut_files: int = 0
    cut_bytes: int = 0
    cut_why: str = ""
    older_files: int = 0


class Missing(Struct, frozen=True):
    """Something that is not in it."""

    what: str
    why: str
    worker: int | None = None
    attempt: int | None = None


class Index(Struct, frozen=True):
    """All of it. `status` is what `tpuctl status` knows; `limit_bytes` was asked for, `host_bytes` follows from
    it and from the room here."""

    run: str
    slice: str
    made: str
    tpuctl: str
    status: Mapping[str, Any]
    decisions: Sequence[Mapping[str, Any]]
    limit_bytes: int
    host_bytes: int
    items: tuple[Item, ...] = ()
    missing: tuple[Missing, ...] = ()
    interrupted: bool = False
    cause: str = ""
    """What its workers did just then, where one of them keeps the others."""

    def without(self, paths: Mapping[str, str]) -> Index:
        """The same after these items were left out, each for its reason."""
        gone = [item for item in self.items if item.path in paths]
        lost = [Missing(item.what, paths[item.path], item.worker, item.attempt) for item in gone]
        kept = tuple(item for item in self.items if item.path not in paths)
        return replace(self, items=kept, missing=(*self.missing, *lost))


def choose_files(found: Sequence[Entry], budget: int, files_max: int = FILES_MAX) -> tuple[Entry, ...]:
    """What of a folder is brought: the smallest files first, of those of one size the newest, as far as the
    budget goes. Folders stay, links do not: nothing in the file leads elsewhere."""
    files = sorted(
        (e for e in found if isinstance(e, TreeFile)), key=lambda e: (e.blob.size, -(e.mtime_ns or 0))
    )
    kept, used = set(), 0
    for entry in files[:files_max]:
        used += entry.blob.size
        if used > budget:
            break
        kept.add(entry.path)
    return tuple(
        e for e in found if not isinstance(e, TreeLink) and (not isinstance(e, TreeFile) or e.path in kept)
    )


def choose_newest(found: Sequence[Entry], files_max: int, since_ns: int) -> tuple[Entry, ...]:
    """What of a folder that has files of others, too, may be brought: the newest ones since then."""
    files = sorted((e for e in found if isinstance(e, TreeFile)), key=lambda e: (-(e.mtime_ns or 0), e.path))
    kept = {entry.path for entry in files[:files_max] if (entry.mtime_ns or 0) >= since_ns}
    return tuple(e for e in found if not isinstance(e, TreeFile) or e.path in kept)


def render_data(index: Index) -> dict[str, Any]:
    """The index as `index.json` has it."""
    data: dict[str, Any] = to_data(index)
    return {"schema": SCHEMA, **data}


def render_index(index: Index) -> str:
    """The index for people."""
    status = index.status
    lines = [f"# Run {index.run} on {index.slice}", "", f"Collected {index.made} by tpuctl {index.tpuctl}."]
    if index.interrupted:
        lines += ["", "**Interrupted: what came until then is here, all else is missing.**"]
    lines += ["", "## How it stands", "", f"- state: {status['state']}"]
    failure = status.get("failure") or {}
    told = {
        "seen just now": index.cause,
        "because": status.get("reason"),
        "failure": failure.get("signature"),
        "evidence": failure.get("evidence"),
        "what it means": failure.get("meaning"),
        "what helps": failure.get("remedy"),
        "command": " ".join(map(str, status.get("command") or ())),
        "debug": ", ".join(status.get("debug") or ()),
        "type next": ", ".join(f"`{each}`" for each in status.get("next") or ()),
    }
    lines += [f"- {name}: {_line(text)}" for name, text in told.items() if text]
    lines += [
        f"- attempt {row['number']} before: {_line(row.get('why') or row.get('cause'))}"
        for row in status.get("earlier") or ()
    ]
    lines += _workers(status.get("workers") or ())
    if index.decisions:
        lines += ["", "Last decisions (all: `why.json`):", ""]
        lines += [f"- {_line(_decision(each))}" for each in index.decisions[-10:]]
    lines += ["", "## What is here", "", *_items(index.items)]
    if index.missing:
        lines += ["", "## What is missing", "", *_missing(index.missing, index.slice)]
    room = f"At most {sized(index.limit_bytes)} in all were asked for: {sized(index.host_bytes)} of each host."
    lines += ["", room, "Values of the run's secrets, and what looks like a secret, are masked.", ""]
    return "\n".join(lines)


def _workers(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    alike: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        alike.setdefault((str(row["state"]), str(row["last_line"])), []).append(row["worker"])
    found = []
    for (state, line), workers in alike.items():
        said = f", last line `{_line(line)}`" if line else ""
        found.append(f"- worker {fold_workers(workers)}: {state}{said}")
    return found


def _decision(row: Mapping[str, Any]) -> str:
    return f"{row['at']} {row['subject']} {row['action']}: {row['reason']}"


def _items(items: Sequence[Item]) -> list[str]:
    """A line for what is alike on hosts."""
    alike: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        alike.setdefault((item.what, item.opens), []).append(item)
    lines = []
    for (what, opens), group in alike.items():
        files, size = sum(item.files for item in group), sum(item.size_bytes for item in group)
        lines.append(f"- **{what}** ({counted(files, 'file')}, {sized(size)}): {opens}")
        lines += [f"  - {name}{_older(item)}{describe_cut(item)}" for name, item in fold_items(group)]
    return lines


def fold_items(items: Sequence[Item]) -> list[tuple[str, Item]]:
    """What has equal names on workers as one, with how people call it and the sums of its numbers."""
    alike: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        path = item.path if item.worker is None else item.path.replace(f"worker-{item.worker}", "worker-N", 1)
        alike.setdefault((path, item.cut_why), []).append(item)
    folded = []
    for (path, _), group in alike.items():
        sums = {name: sum(getattr(item, name) for item in group) for name in COUNTS}
        workers = fold_workers(item.worker for item in group if item.worker is not None)
        name = f"`{group[0].path}`" if len(group) == 1 else f"`{path}` (workers {workers})"
        folded.append((name, replace(group[0], **sums)))
    return folded


def describe_cut(item: Item) -> str:
    """What of it did not fit; empty for nothing."""
    if not item.cut_files:
        return ""
    return f" without {counted(item.cut_files, 'file')} ({sized(item.cut_bytes)}): {item.cut_why}"


def _older(item: Item) -> str:
    return f" without {counted(item.older_files, 'older file')}" if item.older_files else ""


def _missing(missing: Sequence[Missing], slice_name: str) -> list[str]:
    alike: dict[tuple[str, int | None, str], list[int]] = {}
    for each in missing:
        why = common_cause(f"{slice_name}-{each.worker}", each.why)
        workers = alike.setdefault((each.what, each.attempt, why), [])
        workers += [each.worker] if each.worker is not None else []
    lines = []
    for (what, attempt, why), workers in alike.items():
        of = [f"attempt {attempt}"] if attempt is not None else []
        of += [f"worker {fold_workers(workers)}"] if workers else []
        named = f"{what} of {', '.join(of)}" if of else what
        lines.append(f"- {named}: {_line(why)}")
    return lines


def _line(text: object) -> str:
    """Text of programs in one line that is no Markdown of ours."""
    return " ".join(str(text).replace("`", "'").split())[:600]
