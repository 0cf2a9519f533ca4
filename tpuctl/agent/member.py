"""One process below torchrun: gives it its identity and its own logs, and writes down how it ends.

`python member.py ATTEMPT ARGUMENT...`, copied into the folder of its attempt: it imports nothing of the agent.
"""

import json
import os
import signal
import sys
import time


def main(attempt, argv):
    index = int(os.environ["LOCAL_RANK"])
    os.environ.update(
        TPUCTL_RANK=os.environ["RANK"],
        TPUCTL_LOCAL_RANK=str(index),
        TPUCTL_WORLD_SIZE=os.environ["WORLD_SIZE"],
    )
    several = os.environ["LOCAL_WORLD_SIZE"] != "1"
    take_dumps(index)
    for handle, stream in ((1, "stdout"), (2, "stderr")) if several else ():
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        os.dup2(os.open(os.path.join(attempt, "%d.%s.log" % (index, stream)), flags, 0o600), handle)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it reaches the program, too, which is of the same group
    child = os.fork()
    if not child:
        become(argv)
    row = {"pid": child, "start_time": start_time(child), "process": index if several else None}
    path = os.path.join(attempt, "members", "%d.json" % index)
    write(path, row)
    status = os.waitpid(child, 0)[1]
    killed = os.WIFSIGNALED(status)
    row.update(ended_at=time.time(), exit_status=None if killed else os.WEXITSTATUS(status))
    row["signal"] = os.WTERMSIG(status) if killed else None
    write(path, row)
    if killed:
        signal.signal(row["signal"], signal.SIG_DFL) if row["signal"] != signal.SIGKILL else None
        os.kill(os.getpid(), row["signal"])
    sys.exit(128 + row["signal"] if killed else row["exit_status"])


def take_dumps(index):
    """Redirects dumps from the folder of the process above to this process's own."""
    above = os.environ.get("TPUCTL_DUMPS")
    if above:
        own = os.path.join(os.path.dirname(above), str(index))
        os.makedirs(own, 0o700, exist_ok=True)
        for name, value in list(os.environ.items()):
            if above in value:
                os.environ[name] = value.replace(above, own)


def become(argv):
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, ("tpuctl: cannot run %s: %s\n" % (argv[0], error.strerror)).encode())
    finally:
        os._exit(127)


def start_time(pid):
    with open("/proc/%d/stat" % pid, "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def write(path, row):
    with open(path + ".new", "w") as file:
        json.dump(row, file)
    os.rename(path + ".new", path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
