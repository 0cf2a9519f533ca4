"""On what the processes of an attempt compute, as they say themselves.

A folder that PYTHONPATH begins with has `join_hook.py` as its module `sitecustomize`, which every Python below
the attempt's command loads, and the files that it writes, one per process that took devices or waits for them.
"""

import os

from base import make_dir, read_json
from processes import process_stat

REPORTS_MAX = 32


BESIDE = {
    "sitecustomize": "join_hook",
    "tpuctl_trace_hook": "trace_hook",
    "tpuctl_weights": "weights",
    "tpuctl_weights_hook": "weights_hook",
}


def watch(attempt, environment, devices, weights=""):
    """Has the programs that are started with `environment` say what they load of the compile cache, with
    `devices` on what they compute, and with `weights` (warn or strict) what is wrong with their parameters."""
    import pkgutil

    import join_hook

    folder = make_dir(attempt.path("join"))
    for name, module in BESIDE.items():
        with open(os.path.join(folder, name + ".py"), "wb") as file:
            file.write(pkgutil.get_data("join_hook", module + ".py") or b"")
    environment[join_hook.FOLDER] = folder
    environment[join_hook.PLATFORMS] = environment.get("JAX_PLATFORMS", "")
    if not devices:
        environment[join_hook.CACHE_ONLY] = "1"
    if weights:
        environment[join_hook.WEIGHTS] = weights
    behind = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([folder, behind]) if behind else folder


def reports(attempt):
    """What processes said; those that ended wait for nothing any more."""
    folder = attempt.path("join")
    if not os.path.isdir(folder):
        return []
    pids = sorted(int(name[:-5]) for name in os.listdir(folder) if name.endswith(".json"))
    said = [read_report(os.path.join(folder, "%d.json" % pid)) for pid in pids[:REPORTS_MAX]]
    return [each for each in said if each and (not each.get("waits") or process_stat(each["pid"]) is not None)]


def read_report(path):
    try:
        return read_json(path)
    except ValueError:
        return None  # a full disk cut it off
