"""On what the processes of an attempt compute, as they say themselves.

A folder that PYTHONPATH begins with has `join_hook.py` as its module `sitecustomize`, which every Python below
the attempt's command loads, and the files that it writes, one per process that took devices or waits for them.
"""

import os

from base import Refused, make_dir, read_json, source_of, suppress
from processes import process_stat

REPORTS_MAX = 32
# As in `join_hook.py`, which programs compile, and a new host need not for these words.
FOLDER, PLATFORMS = "TPUCTL_JOIN", "TPUCTL_JOIN_PLATFORMS"
NO_DEVICES, WEIGHTS = "TPUCTL_JOIN_NO_DEVICES", "TPUCTL_JOIN_WEIGHTS"
OWN = "tpuctl_"
PARTS = ("compile_hook", "trace_hook", "weights_hook")
BESIDE = {"sitecustomize": "join_hook", **{OWN + name: name for name in ("weights", *PARTS)}}
"""By the name of each module of the folder that of the agent which it is."""


def watch(attempt, environment, devices, weights=""):
    """Has the programs that are started with `environment` tell of themselves, with `devices` also on what they
    compute, and with `weights` what is wrong with their parameters. Why they cannot, where they cannot: the run
    goes on then, unless `weights` is strict, for which it is Refused."""
    folder = attempt.path("join")
    try:
        write_modules(folder)
    except OSError as error:  # such as a full disk
        why = "cannot write %s (%s)" % (folder, error.strerror)
        if weights == "strict":
            said = why + ", and --check strict needs it: make room there, or leave it out"
            raise Refused("no-hook", said) from error
        return why + ": what the program does inside, and whether it came up on the chips, is not known"
    environment[FOLDER] = folder
    environment[PLATFORMS] = environment.get("JAX_PLATFORMS", "")
    if not devices:
        environment[NO_DEVICES] = "1"
    if weights:
        environment[WEIGHTS] = weights
    behind = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([folder, behind]) if behind else folder
    return ""


def write_modules(folder):
    """Each of them whole, or none that Python would find."""
    make_dir(folder)
    for name, module in BESIDE.items():
        path = os.path.join(folder, name + ".py")
        with open(path + ".new", "wb") as file:
            file.write(source_of(module))
        os.rename(path + ".new", path)


def reports(attempt):
    """What processes said of their devices; those that ended wait for nothing any more."""
    said = read_reports(attempt, ".json")
    return [each for each in said if not each.get("waits") or process_stat(each["pid"]) is not None]


def compiles(attempt):
    """What processes said that they compiled; those that ended compile nothing any more."""
    said = read_reports(attempt, ".compiles")
    return [each if process_stat(each["pid"]) is not None else dict(each, now=None) for each in said]


def read_reports(attempt, ending):
    folder = attempt.path("join")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    pids = [int(name[: -len(ending)]) for name in names if name.endswith(ending)]
    paths = {pid: os.path.join(folder, "%d%s" % (pid, ending)) for pid in pids}
    if len(pids) > REPORTS_MAX:  # those that live first, then the newest
        pids.sort(key=lambda pid: (process_stat(pid) is None, -changed_at(paths[pid])))
    said = [read_report(paths[pid]) for pid in sorted(pids[:REPORTS_MAX])]
    return [each for each in said if each]


def changed_at(path):
    with suppress(FileNotFoundError):
        return os.stat(path).st_mtime
    return 0.0


def read_report(path):
    try:
        return read_json(path)
    except ValueError:
        return None  # a full disk cut it off
