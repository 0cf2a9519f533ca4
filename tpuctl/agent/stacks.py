"""`stacks`: what each process of an attempt is doing, by the best means that the host has.

py-spy where the host or the program's environment has it and it may look; else Python's own faulthandler, where
the hook of `join.py` registered it in that process; else what the kernel tells: state, where it waits, its
stack for root.
"""

import os
import shutil
import time

import contained
from base import Attempt
from join_hook import STACKS, STACKS_SIGNAL
from processes import descendants, environment_of, proc_text, process_stat
from rooted import as_root, how_root, output_of
from secret_forms import masked_text
from secret_masks import mask_by_hashes, patterns_of
from state import look
from usage import ports_of

PROCESSES_MAX = 16
WRITES_S = 2.0
TEXT_MAX = 64 << 10
SPY_S = 10.0


def stacks(request, _stdin):
    attempt = Attempt(request)
    found = look(attempt)
    pid = found["pid"]
    if found["state"] != "running" or not pid:
        return {"state": found["state"], "exit_status": found["exit_status"], "processes": []}
    whose = owners(found)
    boxed = contained.processes(attempt)
    if boxed:  # what runs here are the clients of their engine
        several = len(found["processes"]) > 1
        whose = {pid: number if several else None for pid, number in boxed.items()}
    patterns = patterns_of(attempt, environment_of(contained.program(attempt, found)))
    told = [dict(describe(attempt, each), process=whose[each]) for each in list(whose)[:PROCESSES_MAX]]
    for each in told:
        each.update((name, masked_text(each[name], patterns)) for name in ("command", "text"))
        # A program may have written over its own variables: then the hashes know.
        each["command"] = mask_by_hashes([each["command"]], [attempt])[0]
    return {"state": "running", "processes": told}


def owners(found):
    """What runs of an attempt, by pid: of which of its processes that is; None of the one that it has, and of
    what is above several, such as torchrun."""
    told = {row["pid"]: row["process"] for row in found["processes"] if process_stat(row["pid"])}
    for main in (*told, found["pid"]):
        for pid in (main, *sorted(descendants(main))):
            told.setdefault(pid, told.get(main))
    return told


def describe(attempt, pid):
    stat = process_stat(pid)
    answer = {
        "pid": pid,
        "command": proc_text(pid, "cmdline")[:TEXT_MAX].replace("\0", " ").strip(),
        "state": stat[0].decode() if stat else "gone",
        "waits_in": proc_text(pid, "wchan").strip("0"),
        "ports": ports_of(environment_of(pid), "ports"),
    }
    by, text = by_spy(pid)
    if not text:
        by, text = by_faulthandler(attempt, pid, answer["state"])
    if not text:
        by, text = by_kernel(pid)
    return dict(answer, by=by, text=text[:TEXT_MAX])


def by_spy(pid):
    path = environment_of(pid).get("PATH")  # that of its environment, where it may be installed
    program = shutil.which("py-spy", path=path) or shutil.which("py-spy")
    if program is None:
        return "py-spy", ""
    argv = [program, "dump", "--nonblocking", "--pid", str(pid)]
    return "py-spy", (output_of(as_root(argv) if how_root() else argv, seconds=SPY_S) or "")


def by_faulthandler(attempt, pid, state):
    """Only where the process catches the signal: others would end of it. What is stopped does not answer."""
    path = os.path.join(attempt.path("join"), STACKS)
    if state in ("T", "t") or not catches(pid, STACKS_SIGNAL) or not os.path.exists(path):
        return "faulthandler", ""
    begin = os.path.getsize(path)
    try:
        os.kill(pid, STACKS_SIGNAL)
    except OSError:
        return "faulthandler", ""
    size, until = begin, time.monotonic() + WRITES_S
    while time.monotonic() < until:
        time.sleep(0.1)
        before, size = size, os.path.getsize(path)
        if size > begin and size == before:
            break
    with open(path, "rb") as file:
        file.seek(begin)
        return "faulthandler", file.read(TEXT_MAX).decode("utf-8", "replace")


def catches(pid, number):
    for line in proc_text(pid, "status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def by_kernel(pid):
    argv = ["cat", "/proc/%d/stack" % pid]
    return "/proc", proc_text(pid, "stack") or (output_of(as_root(argv)) or "" if how_root() else "")
