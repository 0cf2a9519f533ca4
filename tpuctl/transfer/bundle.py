"""Freezes the code of a run into a tree of contents by their digests.

In a git work tree: the tracked files and the untracked ones that are not ignored, of the whole tree that
contains the run's directory. Elsewhere: every file below it, without caches. `.tpuctlignore` at the top leaves
out more: one shell pattern a line, held against the path and against each of its parts. Fleet files are never
part of it: they hold the variables of other runs; nor are pages, collections and traces of runs.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import shlex
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.config.settings import PROJECT_FILE
from tpuctl.engine.ports import Store
from tpuctl.errors import UsageError
from tpuctl.lib.input_files import is_file, read_text
from tpuctl.model.secret_patterns import SecretPatterns
from tpuctl.model.shipped_files import load_secret_patterns
from tpuctl.transfer.own_output import find_own_output
from tpuctl.transfer.tree import Blob, Content, Entry, TreeFile, TreeLink, list_blobs, parse_tree, render_tree

IGNORE_FILE = ".tpuctlignore"
JUNK = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache",
     ".ruff_cache", ".tox"}
)  # fmt: skip
SERVICE_ACCOUNT_MARK = b'"private_key"'
LOOKED_INTO_BYTES = 1 << 20
SHOWN_FILES = 5


class CodeBundle(Struct, frozen=True):
    """A frozen tree. Its bytes depend on names, modes and contents only, and `sha256` is its digest.

    `directory` is where the run's directory is within the tree (`.` for its top). `size_bytes` is that of all
    files. The git fields are None outside git or before the first commit; `diff` is what tracked files changed
    since `commit`. `own_output` is what of tpuctl's own is no part of it.
    """

    content: Content
    sha256: str
    directory: str
    files: int
    size_bytes: int
    commit: str | None = None
    branch: str | None = None
    dirty: bool = False
    remote_url: str | None = None
    diff: bytes = b""
    diff_sha256: str | None = None
    own_output: tuple[str, ...] = ()


def freeze(
    root: Path, entry: str | None = None, *, limit_bytes: int, without: Path | None = None
) -> CodeBundle:
    """Freezes the tree around directory `root`: `entry` is a file below it that must be part of it. Fleet files
    (`tpuctl.yaml`, and `without`) are no part of it, nor of its diff.

    Raises UsageError for a bundle over `limit_bytes` (with its largest files), files that look like secrets,
    links that point outside, submodules that are not there, and an entry that is missing or left out.
    """
    root = root.resolve()
    top = _git_top(root)
    base = top or root
    if entry is not None and not is_file(root / entry):
        raise UsageError(f"there is no file {entry!r} in {root}", hint=f"ls {root}")
    _check_not_home(base)
    names = _without_ignored(base, _git_files(base) if top else _walk(base))
    named = Path(os.path.realpath(without)) if without else None
    code = {name for name in names if Path(name).name != PROJECT_FILE and base / name != named}
    own = find_own_output(base, code)
    names = sorted(name for name in code - own.keys() if os.path.lexists(base / name))
    if entry is not None:
        _check_entry(base, root, entry, names)
    _check_links(base, names)  # first: what is no file would be waited for, or not be readable
    _check_secrets(base, names)
    size = _check_size(base, names, limit_bytes)
    content = _content(base, names)
    frozen = CodeBundle(
        content=content,
        sha256=content.sha256,
        directory=root.relative_to(base).as_posix(),
        files=len(names),
        size_bytes=size,
        own_output=tuple(sorted(set(own.values()))),
    )
    return _with_git(frozen, base, named) if top else frozen


def freeze_directory(root: Path, *, limit_bytes: int) -> Content:
    """The files below `root` alone, under its name, by the rules of `freeze`.

    Raises UsageError as that does, and where there is no file: a directory that is gone is not an empty one.
    """
    _check_not_home(root)
    names = list_code(root)
    if not names:
        raise UsageError(f"there is no file to send in {root}", hint=f"ls -A {shlex.quote(str(root))}")
    _check_links(root, names)
    _check_secrets(root, names)
    _check_size(root, names, limit_bytes)
    return _content(root, names, under=f"{root.name}/")


def list_code(root: Path) -> list[str]:
    """What of the files below directory `root` is code: their names, from there. Raises UsageError."""
    return list_directory(root)[0]


def list_directory(root: Path) -> tuple[list[str], tuple[str, ...]]:
    """As `list_code`, and what of tpuctl's own is no part of it. `tpuctl dev` asks several times a second, and
    a `Path` of each name would take longer than the file system."""
    found = _git_files(root) if _git_top(root) else _walk(root)
    code = {name for name in _without_ignored(root, found) if name.rpartition("/")[2] != PROJECT_FILE}
    own = find_own_output(root, code)
    return sorted(name for name in code - own.keys() if os.path.lexists(f"{root}/{name}")), tuple(own.values())


def _check_not_home(base: Path) -> None:
    """A whole home directory, with its keys and caches, is never the code; unless somebody thought about it.

    Raises UsageError.
    """
    if base not in (Path.home().resolve(), Path(base.anchor)) or (base / IGNORE_FILE).exists():
        return
    raise UsageError(
        f"the code of this run would be everything in {base}",
        hint=f"go to the directory of your project first, or write what to leave out to {base / IGNORE_FILE}",
    )


def _git(directory: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Runs git without touching its index and with messages in English."""
    command = ["env", "LC_ALL=C", "git", "--no-optional-locks", "-C", str(directory), *arguments]
    return subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)


def _git_output(directory: Path, *arguments: str) -> bytes:
    done = _git(directory, *arguments)
    if done.returncode != 0:
        raise UsageError(f"git {arguments[0]} failed in {directory}: {_text(done.stderr)}")
    return done.stdout


def _git_top(root: Path) -> Path | None:
    """The top of the work tree; None outside of git or without git. Raises UsageError if git refuses."""
    done = _git(root, "rev-parse", "--show-toplevel")
    if done.returncode == 0:
        return Path(os.fsdecode(done.stdout.removesuffix(b"\n")))
    if b"not a git repository" in done.stderr or done.returncode == 127:
        return None
    raise UsageError(f"git cannot read {root}: {_text(done.stderr)}", hint=f"git -C {root} status")


def _git_files(top: Path) -> list[str]:
    """Names below `top`, those of submodules and of nested work trees included."""
    listed = _git_output(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    modules = _submodules(top)
    files: list[str] = []
    for name in filter(None, map(os.fsdecode, listed.split(b"\0"))):
        if name in modules or name.endswith("/"):
            nested = name.rstrip("/")
            files += [f"{nested}/{inner}" for inner in _git_files(_checked_out(top, nested))]
        else:
            files.append(name)
    return files


def _submodules(top: Path) -> set[str]:
    """Paths that the index holds as commits (mode 160000)."""
    rows = _git_output(top, "ls-files", "-z", "--stage").split(b"\0")
    return {os.fsdecode(row.split(b"\t", 1)[1]) for row in rows if row.startswith(b"160000 ")}


def _checked_out(top: Path, name: str) -> Path:
    if not (top / name / ".git").exists():
        raise UsageError(
            f"the submodule {name} is not checked out", hint="git submodule update --init --recursive"
        )
    return top / name


def _walk(top: Path) -> list[str]:
    found = []
    for folder, directories, files in os.walk(top):
        directories[:] = [name for name in directories if name not in JUNK]
        links = [name for name in directories if (Path(folder) / name).is_symlink()]
        below = Path(folder).relative_to(top).as_posix()
        found += [name if below == "." else f"{below}/{name}" for name in (*files, *links)]
    return found


def _without_ignored(base: Path, names: Iterable[str]) -> list[str]:
    try:
        lines = read_text(base / IGNORE_FILE).splitlines()
    except FileNotFoundError:
        return list(names)
    except OSError as error:
        raise UsageError(f"cannot read {base / IGNORE_FILE}: {error.strerror}") from error
    patterns = [line.strip().strip("/") for line in lines if line.strip() and not line.startswith("#")]
    return [name for name in names if not any(_ignores(pattern, name) for pattern in patterns)]


def _ignores(pattern: str, name: str) -> bool:
    parts = name.split("/")
    starts = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
    return any(fnmatch.fnmatchcase(part, pattern) for part in (*parts, *starts))


def _check_entry(base: Path, root: Path, entry: str, names: list[str]) -> None:
    path = Path(os.path.normpath(root / entry))
    if not path.is_relative_to(base) or path.relative_to(base).as_posix() not in names:
        if not path.is_relative_to(base):
            raise UsageError(
                f"{entry!r} is outside of {base}, which is all that goes to the hosts",
                hint="copy it here, or start from a directory that holds both",
            )
        by_git = f"git check-ignore -v {shlex.quote(entry)}"
        raise UsageError(
            f"{entry!r} would not be part of the code bundle: it is ignored in {base}",
            hint=by_git if _git_top(base) is not None else f"what {base / IGNORE_FILE} names stays here",
        )


def _check_secrets(base: Path, names: Iterable[str]) -> None:
    patterns = load_secret_patterns()
    found = {name: kind for name in names if (kind := _secret_in(patterns, base / name))}
    if found:
        shown = ", ".join(f"{name!r} ({kind})" for name, kind in list(found.items())[:SHOWN_FILES])
        more = f" and {len(found) - SHOWN_FILES} more" if len(found) > SHOWN_FILES else ""
        raise UsageError(
            f"the code bundle would hold what looks like secrets: {shown}{more}",
            hint=f"name them in {IGNORE_FILE} (or .gitignore if untracked); pass values with --secret",
            details={"files": list(found)},
        )


def _secret_in(patterns: SecretPatterns, path: Path) -> str:
    """The kind of secret that a file is or holds; empty for none. Large files are data, not looked into."""
    if path.is_symlink():
        return ""
    if patterns.is_secret_file(path.name):
        return "a file of secrets by its name"
    if path.stat().st_size > LOOKED_INTO_BYTES:
        return ""
    content = path.read_bytes()
    if path.suffix.lower() == ".json" and SERVICE_ACCOUNT_MARK in content:
        return "the key of a service account"
    return patterns.find_in_file(content)


def _check_links(base: Path, names: Iterable[str]) -> None:
    """Absolute targets are refused too: they mean another place on the hosts."""
    for name in names:
        path = base / name
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            target = path.readlink()
            if target.is_absolute() or not _stays_inside(base, path, target):
                raise UsageError(
                    f"the link {name!r} points outside of the code bundle, to {str(target)!r}",
                    hint=f"replace it by the file, or add it to .gitignore or {IGNORE_FILE}",
                )
        elif not stat.S_ISREG(mode):
            raise UsageError(f"{name!r} is neither a file nor a link", hint=f"add it to {IGNORE_FILE}")


def _stays_inside(base: Path, link: Path, target: Path) -> bool:
    by_name = Path(os.path.normpath(link.parent / target))
    real = Path(os.path.realpath(link))  # of a link to itself, too, with which `Path.resolve` fails
    return by_name.is_relative_to(base) and real.is_relative_to(base)


def _check_size(base: Path, names: list[str], limit_bytes: int) -> int:
    sizes = {name: (base / name).lstat().st_size for name in names}
    total = sum(sizes.values())
    if total > limit_bytes:
        largest = sorted(names, key=lambda name: sizes[name], reverse=True)[:SHOWN_FILES]
        shown = ", ".join(f"{name!r} {_mib(sizes[name])}" for name in largest)
        raise UsageError(
            f"the code bundle has {_mib(total)}, more than {_mib(limit_bytes)}; the largest files: {shown}",
            hint=f"add them to .gitignore or {IGNORE_FILE}, or raise the setting bundle_limit_mib",
            details={"bytes": total, "limit": limit_bytes, "largest": largest},
        )
    return total


def _content(base: Path, names: Iterable[str], under: str = "") -> Content:
    """Without times and owners; contents are read again when they are stored or sent."""
    found = {name: _entry(base / name, under + name) for name in names}
    entries = found.values()
    places = {e.blob.sha256: base / name for name, e in found.items() if isinstance(e, TreeFile)}
    return Content(render_tree(entries), lambda sha256: [places[sha256].read_bytes()])


def _entry(path: Path, name: str) -> Entry:
    if path.is_symlink():
        return TreeLink(name, str(path.readlink()))
    content = path.read_bytes()
    blob = Blob(hashlib.sha256(content).hexdigest(), len(content))
    return TreeFile(name, stat.S_IMODE(path.stat().st_mode) & 0o777, blob)


def _with_git(frozen: CodeBundle, top: Path, fleet_file: Path | None) -> CodeBundle:
    paths = ["--", ".", f":(exclude,glob)**/{PROJECT_FILE}"]
    if fleet_file is not None and fleet_file.is_relative_to(top):
        paths.append(f":(exclude,literal){fleet_file.relative_to(top)}")
    paths += [f":(exclude,literal){name.rstrip('/')}" for name in frozen.own_output]
    head = _git(top, "rev-parse", "--verify", "--quiet", "HEAD")
    commit = _text(head.stdout) if head.returncode == 0 else None
    shown = ("diff", "--binary", "--no-ext-diff", "--no-textconv", "HEAD", *paths)
    diff = _git_output(top, *shown) if commit else b""
    remote = _text(_git(top, "config", "--get", "remote.origin.url").stdout)
    return replace(
        frozen,
        commit=commit,
        branch=_text(_git(top, "symbolic-ref", "--quiet", "--short", "HEAD").stdout) or None,
        dirty=bool(_git_output(top, "status", "--porcelain", "-z", *paths)),
        remote_url=load_secret_patterns().redact(strip_credentials(remote)) if remote else None,
        diff=diff,
        diff_sha256=hashlib.sha256(diff).hexdigest() if diff else None,
    )


def strip_credentials(url: str) -> str:
    """`url` without user and password, query and fragment, which may hold tokens; `git@host:path` has no secret
    and stays."""
    parts = urlsplit(url)
    if not parts.scheme:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def _text(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip()


def store_content(store: Store, content: Content) -> str:
    """Stores a tree and what is in it, each content once; returns the digest of the tree.

    Raises UsageError when a file is not what it was when the tree was made.
    """
    digests = [blob.sha256 for blob in list_blobs(parse_tree(content.tree))]
    young = store.young_blobs(digests)
    lacking = [digest for digest in digests if digest not in young]
    stored = store.put_blobs(b"".join(content.read(digest)) for digest in lacking)
    if list(stored) != lacking:
        raise UsageError("a file changed while the code was being frozen", hint="run the command again")
    return store.put_blob(content.tree)
