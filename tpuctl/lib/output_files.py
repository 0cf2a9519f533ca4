"""Files that a command writes where a person says: whole or not at all, and never over somebody else's.

A name on a command line is easily another file than was meant: a report over one's notes, a bundle over a
device, a link that leads into a shared folder. So what is there is looked at before any work is done.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tpuctl.errors import FULL_DISK, TpuctlError, UsageError, full_disk_hint

Ours = Callable[[bytes], bool]
"""Whether a file is of the kind that is to be written, by its first bytes."""
HEAD_BYTES = 1 << 16
OTHER = "name another file"


def check_output(
    name: str | Path, flag: str, *, kind: str, ours: Ours | None = None, overwrite: bool | None = False
) -> Path:
    """Where a file goes. An earlier one of its own kind is replaced, any other file with `overwrite` alone.

    `flag` is what named it, or empty; `kind` says in messages what is written ("report"); `overwrite` is None
    where the command has no such option; without `ours` no file is of its kind. Raises UsageError.
    """
    path = Path(name)
    found = _look(path, flag)
    if found is None or overwrite:
        return path
    if ours is None or not _is_ours(path, flag, ours):
        words = "the file exists" if ours is None else f"is there and is no {kind}"
        hint = OTHER if overwrite is None else f"{OTHER}, or --overwrite replaces it"
        raise UsageError(f"{_said(flag, path)}: {words}", hint=hint)
    return path


def _look(path: Path, flag: str) -> os.stat_result | None:
    """What is at `path`, if it is a file that may be replaced. Raises UsageError for all else."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not the name of a file"
        raise UsageError(f"{_said(flag, path)}: {why}", hint=OTHER) from error
    if stat.S_ISLNK(found.st_mode):
        target = os.path.realpath(path)
        raise UsageError(
            f"{_said(flag, path)}: it is a link, to {target}", hint=f"name that file: {_said(flag, target)}"
        )
    if stat.S_ISDIR(found.st_mode):
        raise UsageError(
            f"{_said(flag, path)}: it is a directory", hint=f"name a file in it, such as {path}/FILE"
        )
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{_said(flag, path)}: it is no regular file (a pipe or a device)", hint=OTHER)
    return found


def _is_ours(path: Path, flag: str, ours: Ours) -> bool:
    """An empty file is nobody's: `mktemp` makes such."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise UsageError(f"{_said(flag, path)} cannot be read: {error.strerror}", hint=OTHER) from error
    return not head or ours(head)


@contextmanager
def write_output(path: Path, flag: str, *, fresh: bool = False, private: bool = False) -> Iterator[BinaryIO]:
    """A file that is at `path` when the block ends, in folders that are made; where it fails nothing changes.

    `fresh`: what came to be there meanwhile is not replaced. `private`: its owner alone may read it. Raises
    UsageError and TpuctlError.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o600 if private else 0o666 & ~_umask())
        _look(path, flag)
        if fresh:
            os.link(temporary, path)
        else:
            Path(temporary).replace(path)
            temporary = ""
    except OSError as error:
        raise refused(path, flag, error) from error
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def write_output_text(path: Path, flag: str, text: str, *, fresh: bool = False) -> None:
    """As `write_output`, of a text."""
    with write_output(path, flag, fresh=fresh) as file:
        file.write(text.encode("utf-8", "replace"))


def refused(path: Path, flag: str, error: OSError) -> TpuctlError:
    """What to say where a file that `flag` names cannot be written."""
    if error.errno in FULL_DISK:
        return TpuctlError(f"{path}: {str(error.strerror).lower()}", hint=full_disk_hint(str(path.parent)))
    if isinstance(error, FileExistsError | NotADirectoryError) and not path.parent.is_dir():
        return UsageError(f"{_said(flag, path)}: {error.filename} is no directory", hint=OTHER)
    return UsageError(f"{_said(flag, path)} cannot be written: {error.strerror}", hint=OTHER)


def _said(flag: str, path: Path | str) -> str:
    return f"{flag} {path}".lstrip()


def _umask() -> int:
    """What this process takes from the modes of new files; it can be read by setting it alone."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
