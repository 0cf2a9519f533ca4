"""`trace`: has the processes of an attempt trace themselves at the same moment, see `trace_hook.py`.

A request says what it `does`. `begin` asks the processes to begin `at` a time by this host's clock, one trace
at a time. Where none of them listens, it tells the `port` of a profiler server that the program has, and a
`folder` for that. `look` tells how each process stands, `end` removes what there is, also of a trace that is
under way.
"""

import errno
import os
import re
import time

import contained
import quick_json as json
from base import Attempt, Refused, is_name, make_dir, read_json, remove_tree, suppress, write_json
from processes import descendants, process_stat
from state import free_bytes, look, streams
from trace_hook import OUT, PIPE, looked_at

REQUEST = "request.json"
UNDER_WAY = ("asked", "waiting", "tracing", "writing")
LATE_S = 300.0  # what did not end so long after its time never will
CLAIM_S = 90.0  # whoever asked for a trace looks at it every 15 s, or in a call that may take 60
LOG_BYTES = 1 << 20
PORTS_MAX = 16
# profiler_server.cc of TSL, with TF_CPP_MIN_LOG_LEVEL=0
SERVES = re.compile(rb"Profiler server listening on \S*:(\d+)")
PORTS = (
    6009,  # tf.profiler.experimental.server
    9012,  # docs of PyTorch/XLA: xp.start_server(9012)
    9999,  # docs of JAX: jax.profiler.start_server(9999)
)


def trace(request, _stdin):
    attempt, name = Attempt(request), request["session"]
    if not is_name(name):
        raise Refused("bad-request", "not the name of a trace: %r" % (name,))
    does = {"begin": begin, "look": stand, "end": end}.get(request["does"])
    if does is None:
        raise Refused("bad-request", "a trace does not do %r" % (request["does"],))
    return does(attempt, os.path.join(attempt.path("traces"), name), request)


def begin(attempt, folder, request):
    attempt.locked()
    found = look(attempt)
    if found["state"] != "running":
        return stand(attempt, folder, request)
    if not os.path.exists(os.path.join(folder, REQUEST)):
        clear(attempt)
        room, free = request["room"], free_bytes()
        if free < room:
            raise Refused(
                "no-room", "%d MiB of its disk are free, a trace may need %d" % (free >> 20, room >> 20)
            )
        make_dir(folder)
        ask(attempt, folder, request)
    answer = dict(stand(attempt, folder, request), folder=folder, port=request["port"] or None)
    if not answer["port"] and not answer["processes"]:
        ports = ports_of({found["pid"], *contained.processes(attempt)} | descendants(found["pid"]))
        answer.update(port=find_port(attempt, ports), ports=sorted(ports)[:PORTS_MAX])
    return answer


def ask(attempt, folder, request):
    """First what is asked of whom, then the asking."""
    pipes = {} if request["port"] else listening(attempt)
    asked = {"at": request["at"], "seconds": request["seconds"], "processes": sorted(pipes)}
    write_json(os.path.join(folder, REQUEST), asked)
    said = {
        "folder": folder,
        "python": request["python"],
        "at": asked["at"],
        "seconds": asked["seconds"],
    }
    tell(pipes, said)


def tell(pipes, said):
    for handle in pipes.values():
        with suppress(OSError):
            os.write(handle, (json.dumps(said) + "\n").encode())
        os.close(handle)


def listening(attempt):
    """The pipes of those processes that read them, open, by pid; those of processes that ended are removed."""
    folder = attempt.path("join")
    found = {}
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        pid, path = name[: -len(PIPE)], os.path.join(folder, name)
        if name.endswith(PIPE) and pid.isdigit():
            if process_stat(int(pid)) is None:
                with suppress(OSError):
                    os.remove(path)
                continue
            try:
                found[int(pid)] = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno not in (errno.ENXIO, errno.ENOENT):  # it is gone, and its number another's
                    raise
    return found


def clear(attempt):
    """Ends and removes traces that nobody asks for any more. Refused while somebody does. Of one by a profiler
    server nobody here sees the end."""
    top = attempt.path("traces")
    for name in os.listdir(top) if os.path.isdir(top) else ():
        folder = os.path.join(top, name)
        asked = read_json(os.path.join(folder, REQUEST)) or {}
        states = [row["state"] for row in rows(folder, asked)]
        until = looked_at(folder) + CLAIM_S
        if not states:
            until = max(until, asked.get("at", 0.0) + asked.get("seconds", 0.0))
        wanted = not states or any(state in UNDER_WAY or state == "done" for state in states)
        if asked and wanted and time.time() < until:
            raise Refused("busy", "a trace of it is under way or being fetched (%s)" % name)
        drop(attempt, folder)


def stand(attempt, folder, _request):
    """How it stands. `bytes` is what there is to fetch, and is kept for longer."""
    with suppress(OSError):
        os.utime(folder)
    asked = read_json(os.path.join(folder, REQUEST)) or {}
    processes = rows(folder, asked)  # before what there is: one that is done has all of it there
    out = os.path.join(folder, OUT)
    names = os.listdir(out) if os.path.isdir(out) else []
    return {
        "state": look(attempt)["state"],
        "time": time.time(),
        "processes": processes,
        "bytes": sum(os.path.getsize(os.path.join(out, name)) for name in names),
        "free_bytes": free_bytes(),
    }


def rows(folder, asked):
    return [row(folder, pid, asked) for pid in asked.get("processes") or ()]


def row(folder, pid, asked):
    alive = process_stat(pid) is not None
    told = {"pid": pid, "state": "asked"}
    with suppress(ValueError):  # a full disk cut it off
        told = read_json(os.path.join(folder, "%d.json" % pid)) or told
    late = time.time() > asked["at"] + asked["seconds"] + LATE_S
    if told["state"] in UNDER_WAY and (late or not alive):
        why = "it does not come to an end" if alive else "the process ended before its trace was written"
        told.update(state="failed", error=why)
    return told


def end(attempt, folder, _request):
    if os.path.isdir(folder):
        drop(attempt, folder)
    return stand(attempt, folder, _request)


def drop(attempt, folder):
    """A process that traces just now stops, and removes what it writes after this."""
    tell(listening(attempt), {"end": folder})
    with suppress(OSError):  # it writes there
        remove_tree(folder)


def find_port(attempt, ports):
    """The one of these that is a profiler's, as far as can be told without a word to it: what another service
    would do with that nobody knows. None where there is none."""
    said = set()
    for name in streams(attempt):
        with suppress(OSError), open(attempt.path(name + ".log"), "rb") as file:
            said |= {int(port) for port in SERVES.findall(file.read(LOG_BYTES))}
    return next((port for port in (*sorted(said), *PORTS) if port in ports), None)


def ports_of(pids):
    """TCP ports on which these processes listen, proc(5)."""
    inodes = set()
    for pid in pids:
        folder = "/proc/%d/fd" % pid
        with suppress(OSError):
            for name in os.listdir(folder):
                with suppress(OSError):
                    inodes.add(os.readlink(os.path.join(folder, name)))
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), open(table) as file:
            for words in (line.split() for line in file):
                if len(words) > 9 and words[3] == "0A" and "socket:[%s]" % words[9] in inodes:
                    found.add(int(words[1].rpartition(":")[2], 16))
    return found
