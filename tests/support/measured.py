"""When, where and of which revision something was measured, by runs that are too long for the tests."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STAT = Path("/proc/stat")
BUSY_LOAD = 0.3
"""From here on processors have other things to do, and times tell of these as well."""
LOOK_S = 1.0
_MEASURED = ("--", ".", ":!docs", ":!*.md")


def revision() -> str:
    """The last commit that changed more than documents, so that pages with results can be committed; with a
    plus where something has changed since, which is no revision. Empty outside a repository."""
    found = _git("log", "-1", "--format=%h", *_MEASURED)
    return found + "+" * bool(_git("status", "--porcelain", "--untracked-files=no", *_MEASURED))


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def load() -> float:
    """How many processors are busy during LOOK_S. An average of the last minute tells of what is over."""
    if not STAT.exists():
        return round(os.getloadavg()[0], 1)
    before, began = _idle_s(), time.monotonic()
    time.sleep(LOOK_S)
    idle = (_idle_s() - before) / (time.monotonic() - began)
    return round(max(0.0, (os.cpu_count() or 1) - idle), 1)


def _idle_s() -> float:
    """Of all processors together, waiting for a disk included (proc_stat(5))."""
    times = STAT.read_text().split(None, 6)
    return (int(times[4]) + int(times[5])) / os.sysconf("SC_CLK_TCK")


def append_entry(file: Path, entry: Mapping[str, Any]) -> None:
    """One line a measurement."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(entry, ensure_ascii=False) + "\n")


def read_entries(file: Path) -> list[dict[str, Any]]:
    """The oldest first."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def is_clean(at: str) -> bool:
    """Whether a revision says all of what was measured."""
    return bool(at) and not at.endswith("+")


def is_done(entries: list[dict[str, Any]], name: str, at: str) -> bool:
    """Whether `name` was measured at this very revision, for who goes on where an earlier run ended."""
    return is_clean(at) and any((e["name"], e["revision"]) == (name, at) for e in entries)
