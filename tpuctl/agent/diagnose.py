"""`diagnose`: how this host stood when a program of it failed: kernel messages, memory, disks, processes, and
the last lines of libtpu's own logs. For people: nothing reads it."""

import os
import time

from base import root
from rooted import as_root, how_root, output_of
from secret_masks import mask_by_hashes
from state import list_attempts

DRIVER_LOGS = "/tmp/tpu_logs"  # where libtpu writes (cloud.google.com/tpu/docs/troubleshooting)
PART_MAX = 16 << 10
READ_MAX = 2 * PART_MAX  # so that no value is cut in two before it is masked
LOGS_MAX = 4
PROGRAMS = (
    ("memory", ["free", "-m"]),
    ("disks", ["df", "-h"]),
    ("processes", ["ps", "-eo", "pid,ppid,user,stat,rss,etime,wchan:20,args", "--sort=-rss"]),
)


def diagnose(request, _stdin):
    """`driver_logs`: where libtpu writes them for a run that has a folder of its own, below `~/.tpuctl`."""
    own = request["driver_logs"]
    parts = [("time", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())), ("kernel", kernel_messages())]
    parts += [(title, (output_of(argv) or "")[:READ_MAX]) for title, argv in PROGRAMS]
    parts += [(path, tail(path)) for path in driver_logs(root(own) if own else DRIVER_LOGS)]
    told = mask_by_hashes([text for _, text in parts], list_attempts())
    ends = {"kernel", *(path for path, _ in parts if path.startswith("/"))}
    pairs = [
        (title, text[-PART_MAX:] if title in ends else text[:PART_MAX]) for (title, _), text in zip(parts, told)
    ]
    return {"text": "\n".join("== %s\n%s" % (title, text or "not known\n") for title, text in pairs)}


def kernel_messages():
    argv = ["dmesg", "--ctime"]
    return (output_of(as_root(argv) if how_root() else argv) or "")[-READ_MAX:]


def driver_logs(folder):
    """The newest few."""
    try:
        paths = [os.path.join(folder, name) for name in os.listdir(folder)]
        files = [path for path in paths if os.path.isfile(path) and not os.path.islink(path)]
        return sorted(files, key=os.path.getmtime)[-LOGS_MAX:]
    except OSError:
        return []


def tail(path):
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - READ_MAX))
            return file.read(READ_MAX).decode("utf-8", "replace")
    except OSError as error:
        return "not readable: %s\n" % error.strerror
