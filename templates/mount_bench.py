"""Writes or reads one file and says how long that took. Whoever sends this to a host adds the call.

Python 3.8, standard library.
"""

import json  # noqa: F401 - for the call that is added
import os
import time

BLOCK = 8 << 20


def measure(mode, path, mib):
    """Bytes that went through until the end or an error, and the time until the file was closed: what gcsfuse
    streams is in the bucket only then."""
    done, error, began = 0, "", time.monotonic()
    block = os.urandom(BLOCK)
    try:
        with open(path, "wb" if mode == "write" else "rb", buffering=0) as file:
            while done < mib << 20:
                want = min(BLOCK, (mib << 20) - done)
                step = file.write(block[:want]) if mode == "write" else len(file.read(want))
                if not step:
                    error = "it ended after %d of %d bytes" % (done, mib << 20)
                    break
                done += step
    except OSError as failed:
        error = os.strerror(failed.errno or 0)
    return {"bytes": done, "seconds": time.monotonic() - began, "error": error}
