"""What takes long to make or fetch, in `~/.cache/tpuctl-tests`: made once, by the test that needs it first."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.require import require_index

CACHE = Path.home() / ".cache" / "tpuctl-tests"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache, which `make` has filled. Skips where it is not there, nor a package index."""
    folder = CACHE / name
    if not folder.exists():
        require_index()
        CACHE.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=CACHE, prefix=".made-"))
        made.chmod(0o755)
        try:
            make(made)
            with suppress(OSError):  # another session was faster
                made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return folder


def run_commands(*commands: Sequence[str | Path], **environ: str) -> None:
    """One after the other; each must succeed. `environ` is added to the environment of this process."""
    for words in commands:
        subprocess.run(words, env={**os.environ, **environ}, check=True, timeout=600)


def link_tree(source: Path, target: Path) -> None:
    """A tree of its own, whose files are those of the cache."""
    shutil.copytree(source, target, symlinks=True, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the cache is on another file system
        shutil.copy2(source, target)
