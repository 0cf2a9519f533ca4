"""What runs of an attempt in containers: `containers.py` writes it down, in a file for each in the attempt's
folder. Their processes are children of an engine, not of the supervisor."""

import os

from base import read_json, suppress
from processes import can_signal, descendants, is_alive, process_stat, signal

FOLDER, ENGINE = "containers", "containers/engine"
SIGNAL_S = 10.0


def is_contained(attempt):
    return os.path.isdir(attempt.path(FOLDER))


def rows(attempt):
    """The containers that are known to have begun."""
    folder = attempt.path(FOLDER)
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    found = [read_json(os.path.join(folder, name)) for name in names if name.endswith(".json")]
    return [row for row in found if row]


def processes(attempt):
    """{number: which of the attempt's processes that is} of all that runs in its containers."""
    found = {}
    for row in rows(attempt):
        if is_alive(row["pid"], row["start_time"]):
            found.update(dict.fromkeys([row["pid"], *sorted(descendants(row["pid"]))], row["process"]))
    return found


def program(attempt, found):
    """The process that has the variables of the program: in a container not that which the supervisor runs."""
    return next(iter(processes(attempt)), found["pid"])


def terminate(attempt, pids):
    """TERM to each of these, also to those of root: where this user is not root, the engine may be."""
    for pid in filter(can_signal, pids):
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)
    others = [str(pid) for pid in pids if not can_signal(pid) and process_stat(pid)]
    if others:
        from rooted import as_root, how_root, run_program

        mains = [row["name"] for row in rows(attempt) if str(row["pid"]) in others]
        by_engine = [*(read_json(attempt.path(ENGINE)) or ("", []))[1], "kill", "--signal=TERM", *mains]
        with suppress(OSError, TimeoutError):  # whoever wants them gone asks the engine next
            words = as_root(["kill", "-TERM", *others]) if how_root() else by_engine
            run_program(words, SIGNAL_S, quiet=True)
