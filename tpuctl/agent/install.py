"""`install`: the archive that this program runs from becomes a folder of compiled modules beside it.

The folder appears complete and on the disk or not at all, under a name made from the archive's content: two
clients at once do no harm. A second time changes nothing, unless the folder there is not what it should be: a
disk that lied about what it wrote, or a person, can damage it.
"""

import os
import sys

from base import sync_dir


def install(name):
    import py_compile
    import shutil
    import tempfile
    import zipfile

    archive = sys.path[0]
    place = os.path.join(os.path.dirname(archive), name)
    folder = tempfile.mkdtemp(prefix=".new.", dir=os.path.dirname(archive))
    try:
        with zipfile.ZipFile(archive) as bundle:
            bundle.extractall(folder)
        for module in os.listdir(folder):
            py_compile.compile(os.path.join(folder, module), doraise=True)
        sync_tree(folder)
        if os.path.isdir(place) and not intact(place, folder):
            move_away(place)
        os.rename(folder, place)
        sync_dir(os.path.dirname(place))
    except OSError as error:
        if not os.path.isdir(place):  # nobody else was faster
            sys.stderr.write("tpuctl: cannot install the agent: %s\n" % error)
            return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def sync_tree(folder):
    """Writes a folder to the disk: after a loss of power, the new name must not stand for empty files."""
    for path, _, names in os.walk(folder):
        for name in names:
            handle = os.open(os.path.join(path, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        sync_dir(path)


def intact(place, fresh):
    """Whether the modules in `place` are those in `fresh`, and compiled to something that can be loaded."""
    import importlib.util
    import marshal

    try:
        for module in os.listdir(fresh):
            if not module.endswith(".py"):
                continue
            path = os.path.join(place, module)
            if read(path) != read(os.path.join(fresh, module)):
                return False
            marshal.loads(read(importlib.util.cache_from_source(path))[16:])  # PEP 552: 16 bytes of header
    except (OSError, ValueError, EOFError, TypeError):
        return False
    return True


def read(path):
    with open(path, "rb") as file:
        return file.read()


def move_away(place):
    """Makes room in one step; what runs from there has its modules, or finds the new ones."""
    import shutil
    import tempfile

    old = tempfile.mkdtemp(prefix=".new.", dir=os.path.dirname(place))
    try:
        os.rename(place, os.path.join(old, "damaged"))
    finally:
        shutil.rmtree(old, ignore_errors=True)
