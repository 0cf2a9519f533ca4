"""Files that a person names: read within a limit, and only if they are files.

`/dev/zero` has no end and a pipe without a writer never answers, so neither is opened for reading, whatever
names it: a flag, a setting, a fleet file that came with somebody else's code.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONFIG_LIMIT = 256 << 10
"""Bytes of a configuration or fleet file: the largest that people write have some thousand lines, and to read
ten times as many takes most of a minute."""
TEXT_LIMIT = 1 << 20
"""Bytes of a letter, a secret, a token or a startup script (of which the API takes 256 KiB)."""


def read_file(path: Path, limit_bytes: int = TEXT_LIMIT) -> bytes:
    """What is in the regular file `path`, of at most `limit_bytes`.

    Raises OSError, with words for people as its strerror: for what cannot be opened, what is no regular file,
    and what is larger.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in it
        raise OSError(errno.EINVAL, "not the name of a file", str(path)) from error
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        mode = status.st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a directory", str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file (a pipe or a device)", str(path))
        with naming(path):
            content = b"" if status.st_size > limit_bytes else file.read(limit_bytes + 1)
    if max(status.st_size, len(content)) > limit_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {limit_bytes >> 10} KiB", str(path))
    return content


def read_text(path: Path, limit_bytes: int = TEXT_LIMIT) -> str:
    """The UTF-8 text in `path`; as `read_file`, and OSError for bytes that are no text."""
    try:
        return read_file(path, limit_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, f"it is not UTF-8 text (byte {error.start})", str(path)) from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Reads or writes `path`: an OSError of theirs that names no file (a full disk, a broken one) names it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def is_file(path: Path) -> bool:
    """Whether there is a file; also False for a name that no file can have (too long, a NUL in it)."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises for a name that is too long
