"""Files that appear whole or not at all."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from tpuctl.errors import TpuctlError

TEMPORARY = ".tmp-"
"""How the names of files begin that are not whole yet."""
Guard = Callable[[], AbstractContextManager[object]]


def write_private(path: Path, content: bytes, *, mode: int = 0o600, guard: Guard = nullcontext) -> None:
    """Temporary file, fsync, rename (under `guard`); missing directories get mode 0700."""
    import tempfile  # most commands write nothing so

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
        with guard():
            Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Holds the lock `path` if nobody else does; says whether it does. Not inherited by programs it starts."""
    handle = _open(path)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(handle)


@contextmanager
def wait_lock(path: Path) -> Iterator[None]:
    """Holds the lock `path`, after whoever has it now."""
    handle = _open(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise TpuctlError(f"cannot lock {path}: {error.strerror}") from error
