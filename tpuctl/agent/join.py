"""On what the processes of an attempt compute, as they say themselves.

A folder that PYTHONPATH begins with has `join_hook.py` as its module `sitecustomize`, which every Python below
the attempt's command loads, and the files that it writes, one per process that took devices or waits for them.
"""

import os

from base import make_dir, read_json
from processes import process_stat

REPORTS_MAX = 32


def watch(attempt, environment, devices):
    """Has the programs that are started with `environment` say what they load of the compile cache, and with
    `devices` on what they compute."""
    import pkgutil

    import join_hook

    folder = make_dir(attempt.path("join"))
    with open(os.path.join(folder, "sitecustomize.py"), "wb") as file:
        file.write(pkgutil.get_data("join_hook", "join_hook.py") or b"")
    environment[join_hook.FOLDER] = folder
    environment[join_hook.PLATFORMS] = environment.get("JAX_PLATFORMS", "")
    if not devices:
        environment[join_hook.CACHE_ONLY] = "1"
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
