"""The sections `envs` and `variables` of `facts`: the current state of installed environments, and variables of
this user's login that change what programs load."""

import os

from base import read_json, root
from digest import file_sha256, sha256
from facts import installed

MARKER = "tpuctl-env.json"
INDEX = "tpuctl-files.json"
BYTECODE = "tpuctl-bytecode"  # of an environment whose files are not ours: what was compiled of them
CACHE, COMPILED = "__pycache__", ".pyc"
CHANGED_MAX = 20
# They choose what a program loads, or its flags. Secrets are not among them.
NAMES = (
    "JAX_PLATFORMS",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LIBTPU_INIT_ARGS",
    "PJRT_DEVICE",
    "PTXLA_TPU_LIBRARY_PATH",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONPYCACHEPREFIX",
    "TPU_LIBRARY_PATH",
    "XLA_DOWNCAST_BF16",
    "XLA_FLAGS",
    "XLA_USE_BF16",
)
LOGIN_FILES = (
    "~/.bashrc",
    "~/.profile",
    "~/.bash_profile",
    "~/.ssh/environment",
    "/etc/environment",
    "/etc/bash.bashrc",
    "/etc/profile",
    "/etc/profile.d/*",
)
FILE_MAX = 1 << 20
INTERPRETER = "bin/python"


def envs_facts(request):
    """Environments below ~/.tpuctl/envs, or those of the keys in `envs`: what was recorded when they were
    verified, and which files have changed since then."""
    folder, wanted = root("envs"), request.get("envs")
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    if wanted:
        names = [name for name in names if name in wanted]
    return [
        environment(os.path.join(folder, name), name)
        for name in names
        if not name.startswith(".") and os.path.isdir(os.path.join(folder, name))
    ]


def environment(folder, name):
    try:
        mark = read_json(os.path.join(folder, MARKER))
    except ValueError:
        mark = None  # damaged: as good as none
    changed = []
    if mark is not None:
        digest = mark.pop("signatures_sha256", None)
        changed = changed_files(folder, tree_of(mark) or folder, digest, mark.get("bytecode", False))
    if mark is not None and not all(os.path.exists(root("sealed", row[2])) for row in mark.get("sealed") or ()):
        mark["sealed"] = []  # what it had for other hosts was cleaned up
    if (
        mark is not None
        and INTERPRETER not in changed
        and not os.path.exists(os.path.join(folder, INTERPRETER))
    ):
        changed.insert(0, INTERPRETER)  # the link is as it was, and leads nowhere
    changed += changed_packages((mark or {}).get("os_packages") or {})
    return {"key": name, "mark": mark, "changed": changed[:CHANGED_MAX], "changes": len(changed)}


def changed_packages(wanted):
    """Operating system packages that no longer have the environment's versions."""
    found = installed(sorted(wanted))
    return ["package %s" % name for name in sorted(wanted) if found.get(name) != wanted[name]]


def tree_of(mark):
    """The folder of an unmanaged environment, to which links in our folder lead; otherwise nothing."""
    return (mark.get("unmanaged") or {}).get("path")


def changed_files(folder, tree, digest=None, compiled=False):
    """Paths below `tree` that differ from the list in `folder`. The list is read only if the digest of all
    signatures has changed, and a file only if its own signature has: a write sets the ctime, and nobody can set
    that back. `compiled`: the list includes the bytecode that Python loads instead of sources."""
    rows = signatures(tree, compiled, tree == folder)
    if compiled and tree != folder:
        own = signatures(os.path.join(folder, BYTECODE), compiled)
        rows += [(BYTECODE + os.sep + row[0], *row[1:]) for row in own if row[0].endswith(COMPILED)]
    rows.sort()
    if digest_of(rows) == digest:
        return []
    try:
        index = read_json(os.path.join(folder, INDEX))
    except ValueError:
        index = None
    if not isinstance(index, dict):
        return [INDEX]
    left, found = dict(index), []
    for path, *now in rows:
        known = left.pop(path, None)
        top = folder if path.startswith(BYTECODE + os.sep) else tree
        if known is None or (now != known[1:] and differs(os.path.join(top, path), known[0])):
            found.append(path)
    return sorted([*found, *left])


def signatures(tree, compiled=False, caches=True):
    """(path, size, mtime, ctime, inode) of each file but ours. Bytecode is included only with `compiled`, and
    bytecode next to sources only if `caches` is set, too."""
    found, folders = [], [""]
    skipped = None if compiled and caches else CACHE
    while folders:
        below = folders.pop()
        try:
            handle = os.open(os.path.join(tree, below), os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue  # gone, or not readable: its files are missing
        cache = below.endswith(CACHE + os.sep)
        # By the handle of their folder, the kernel finds files in half the time that it takes by their paths.
        try:
            with os.scandir(handle) as entries:
                for entry in entries:
                    name = entry.name
                    if entry.is_dir():
                        if name != skipped and not entry.is_symlink():
                            folders.append(below + name + os.sep)
                    elif compiled if name.endswith(COMPILED) else not cache and name not in (MARKER, INDEX):
                        try:
                            now = entry.stat(follow_symlinks=False)
                        except OSError:
                            continue  # missing, too
                        row = (below + name, now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_ino)
                        found.append(row)
        finally:
            os.close(handle)
    return found


def digest_of(rows):
    """The same digest that the installer records: its `signatures_digest`."""
    import marshal

    data = marshal.dumps(rows, 2)
    check = sha256(len(data))
    check.update(data)
    return check.hexdigest()


def differs(path, digest):
    try:
        if os.path.islink(path):
            return digest != "link:" + os.readlink(path)
        return file_sha256(path) != digest
    except OSError:
        return True


def variables_facts(_request):
    return {name: {"value": os.environ[name], "file": said_in(name)} for name in NAMES if name in os.environ}


def said_in(name):
    """The login file that sets a variable, or nothing."""
    import glob
    import re

    pattern = re.compile(r"^\s*(export\s+)?%s=" % name, re.MULTILINE)
    for place in LOGIN_FILES:
        for path in sorted(glob.glob(os.path.expanduser(place))):
            try:
                with open(path, errors="replace") as file:
                    if pattern.search(file.read(FILE_MAX)):
                        return path
            except OSError:
                continue
    return ""
