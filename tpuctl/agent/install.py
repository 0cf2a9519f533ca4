"""`install`: the archive that this program runs from becomes a folder of modules.

The folder appears complete and on the disk or not at all, under a name made from the archive's content: two
clients at once do no harm. A second time changes nothing, unless the folder there is not what it should be: a
disk that lied about what it wrote, or a person, can damage it.

Every new host pays for this. What it imports is what Python has frozen in itself: the modules of the standard
library for archives and temporary folders take as long to import as all else that is done here. Nothing is
compiled here: Python does that, and keeps it, when a verb first imports a module, and most are never imported.
"""

import os
import sys

import mask  # noqa: F401 - from here on, what is made is private

LIST = "MODULES"
"""In the archive: the names of its modules, a line each."""
CACHE = "__pycache__"


def install(archive, place):
    folder = ""
    try:
        folder = make_folder(place)
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
        if folder and os.path.isdir(folder):
            import shutil

            shutil.rmtree(folder, ignore_errors=True)
    return 0


def make_folder(beside):
    """A new empty folder in the folder of `beside`, which is made, too."""
    os.makedirs(os.path.dirname(beside), exist_ok=True)
    folder = os.path.join(os.path.dirname(beside), ".new." + os.urandom(8).hex())
    os.mkdir(folder, 0o700)
    return folder


def unpack(archive, folder):
    """Writes the modules. OSError when not all could be written."""
    from zipimport import zipimporter

    os.mkdir(os.path.join(folder, CACHE), 0o700)  # Python would let everybody in
    packed = zipimporter(archive)
    for module in packed.get_data(LIST).decode().split():
        with open(os.path.join(folder, module), "wb") as file:
            file.write(packed.get_data(module))


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
    """Whether the modules in `place` are those in `fresh`, and what Python made of them can be loaded."""
    import marshal

    cache = os.path.join(place, CACHE)
    try:
        for name in os.listdir(fresh):
            if name != CACHE and read(os.path.join(place, name)) != read(os.path.join(fresh, name)):
                return False
        for name in os.listdir(cache):
            if name.endswith(".pyc"):  # else another process compiles it just now
                marshal.loads(read(os.path.join(cache, name))[16:])  # PEP 552: 16 bytes of header
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
