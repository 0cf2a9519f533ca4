"""`install`: the archive that this program runs from becomes a folder of compiled modules beside it.

The folder appears complete and on the disk or not at all, under a name made from the archive's content: two
clients at once do no harm. A second time changes nothing, unless the folder there is not what it should be: a
disk that lied about what it wrote, or a person, can damage it.

Every new host pays for this. What it imports is what Python has frozen in itself: the modules of the standard
library for archives, temporary folders and compiling take as long to import as all else that is done here.
"""

import os
import sys

import mask  # noqa: F401 - from here on, what is made is private

LIST = "MODULES"
"""In the archive: the names of its modules, a line each."""


def install(name):
    archive = sys.path[0]
    place = os.path.join(os.path.dirname(archive), name)
    folder = make_folder(archive)
    try:
        unpack(archive, folder)
        sync_tree(folder)
        if os.path.isdir(place) and not intact(place, folder):
            move_away(place)
        os.rename(folder, place)
        sync(os.path.dirname(place))
    except OSError as error:
        if not os.path.isdir(place):  # nobody else was faster
            sys.stderr.write("tpuctl: cannot install the agent: %s\n" % error)
            return 1
    finally:
        if os.path.isdir(folder):
            import shutil

            shutil.rmtree(folder, ignore_errors=True)
    return 0


def make_folder(beside):
    """A new empty folder in the folder of `beside`."""
    folder = os.path.join(os.path.dirname(beside), ".new." + os.urandom(8).hex())
    os.mkdir(folder, 0o700)
    return folder


def unpack(archive, folder):
    """Writes the modules, and beside them what Python makes of them. OSError when not all could be written."""
    from importlib.machinery import SourceFileLoader
    from zipimport import zipimporter

    sys.dont_write_bytecode = False
    packed = zipimporter(archive)
    modules = packed.get_data(LIST).decode().split()
    for module in modules:
        path = os.path.join(folder, module)
        with open(path, "wb") as file:
            file.write(packed.get_data(module))
        name = module[: -len(".py")]
        SourceFileLoader(name, path).get_code(name)  # compiles, and keeps it as an import does: or says nothing
    compiled = os.listdir(os.path.join(folder, "__pycache__"))
    if len(compiled) != len(modules):
        raise OSError("only %d of %d modules could be compiled" % (len(compiled), len(modules)))


def sync_tree(folder):
    """Writes a folder to the disk: after a loss of power, the new name must not stand for empty files."""
    for path, _, names in os.walk(folder):
        for name in names:
            sync(os.path.join(path, name))
        sync(path)


def sync(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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

    old = make_folder(place)
    try:
        os.rename(place, os.path.join(old, "damaged"))
    finally:
        shutil.rmtree(old, ignore_errors=True)
