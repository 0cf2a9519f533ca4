"""`install`: the archive that this program runs from becomes a folder of compiled modules beside it.

The folder appears complete or not at all, under a name made from the archive's content, and never changes: two
clients at once, or a second time, do no harm.
"""

import os
import sys


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
        os.rename(folder, place)
    except OSError as error:
        if not os.path.isdir(place):  # nobody else was faster
            sys.stderr.write("tpuctl: cannot install the helper: %s\n" % error)
            return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0
