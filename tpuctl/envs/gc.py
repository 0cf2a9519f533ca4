"""`tpuctl env gc`: environments and compile caches of hosts that nothing needs any more."""

from __future__ import annotations

from tpuctl.engine.services import Services
from tpuctl.envs.pinned import environment_keys, parse_frozen
from tpuctl.hosts.agent_link import AgentLink
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.text import fold_workers
from tpuctl.model.records import SliceRecord
from tpuctl.state.repository import list_runs

KEPT = 2
"""Environments of a host that stay whatever runs: the one in use and the one before, to go back to."""
GC_SCRIPT = """
import fcntl, os, re, shutil, sys
mode, kept, needed = sys.argv[1], int(sys.argv[2]), set(sys.argv[3:])
top = os.path.realpath(os.path.expanduser("~/.tpuctl/envs"))
def age(name):
    try:
        return os.stat(os.path.join(top, name, "tpuctl-env.json")).st_mtime
    except OSError:
        return 0.0
names = [n for n in os.listdir(top) if not n.startswith(".")] if os.path.isdir(top) else []
names.sort(key=age, reverse=True)
stay = needed.union(names)
def read(pid, name):
    try:
        if name in ("cwd", "root", "exe"):
            return os.fsencode(os.readlink("/proc/%s/%s" % (pid, name)))
        with open("/proc/%s/%s" % (pid, name), "rb") as file:
            return file.read()
    except OSError:
        return b""  # gone, or another user's
def opened(pid):
    try:
        return [read_link("/proc/%s/fd/%s" % (pid, fd)) for fd in os.listdir("/proc/%s/fd" % pid)]
    except OSError:
        return []
def read_link(path):
    try:
        return os.fsencode(os.readlink(path))
    except OSError:
        return b""
def users(path):
    # Who was started from it, or has one of its files: runs have its bin among their variables.
    typed = os.path.join(os.path.expanduser("~/.tpuctl/envs"), os.path.basename(path))
    either = b"|".join(re.escape(os.fsencode(each)) for each in {path, typed})
    within = re.compile(b"(?:" + either + b")(?![^/:\\0\\n ])")
    for pid in sorted(filter(str.isdigit, os.listdir("/proc")), key=int):
        said = [read(pid, name) for name in ("environ", "cmdline", "maps", "cwd", "root", "exe")]
        if int(pid) != os.getpid() and within.search(b"\\n".join(said + opened(pid))):
            yield pid
def remove(name):
    path = os.path.join(top, name)
    with open(os.path.join(top, "." + name + ".lock"), "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as who installs it does
        except BlockingIOError:
            return "it is being installed"
        pid = next(users(path), None)
        if pid is not None:
            return "process %s uses it" % pid
        if mode == "remove":
            mark = os.path.join(path, "tpuctl-env.json")
            os.path.exists(mark) and os.unlink(mark)
            shutil.rmtree(path)
        return ""
for name in [n for n in names if age(n)][kept:] + [n for n in names if not age(n)]:
    if name not in needed:
        why = remove(name)
        if why:
            print("kept environment %s (%s)" % (name, why))
        else:
            stay.discard(name)
            print("environment " + name)
caches = os.path.expanduser("~/.tpuctl/compile-cache")
def used(path):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/environ" % pid, "rb") as file:
                if b"=" + os.fsencode(path) + bytes(1) in file.read():
                    return True
        except OSError:
            pass  # gone, or another user's, whose programs cannot write here
    return False
for name in sorted(os.listdir(caches)) if os.path.isdir(caches) else []:
    path, ours = os.path.join(caches, name), re.match("([0-9a-f]{16})-.+-[0-9a-f]{8}$", name)
    if ours and ours.group(1) not in stay and not os.path.islink(path) and not used(path):
        print("compile cache " + name)
        if mode == "remove":
            shutil.rmtree(path)
"""


def remove_old(services: Services, record: SliceRecord, *, dry_run: bool) -> list[str]:
    """Removes environments from hosts and compile caches of environments that are not there; says what it did.

    What stays: the newest ones of each host, by when they were last verified, those that the slice or runs on
    it have, those that are being installed, and those that a process has open.
    """
    runs = [run for run in list_runs(services) if run.slice_name == record.name and not run.state.final]
    named = [record.spec.env, *(run.spec.environment for run in runs)]
    needed = {
        key
        for pinned in [parse_frozen(services.store.get_blob(each.spec)) for each in named if each is not None]
        for key in environment_keys(pinned)
    }
    for run in runs:
        if run.attempt is not None:
            needed |= {row["environment_key"] for row in run.attempt.hosts if row.get("environment_key")}
    argv = ["python3", "-I", "-c", GC_SCRIPT, "dry" if dry_run else "remove", str(KEPT), *sorted(needed)]
    agent = AgentLink(services.remote, services.agent_source)
    said: dict[int, bytearray] = {}

    def sink(worker: int, stream: str, data: bytes) -> None:
        if stream == "stdout":
            said.setdefault(worker, bytearray()).extend(data)

    agent.session(host_targets(services, record), argv, sink)
    groups: dict[str, list[int]] = {}
    for worker, data in sorted(said.items()):
        for line in data.decode(errors="replace").splitlines():
            groups.setdefault(line, []).append(worker)
    word = "would remove" if dry_run else "removed"
    return [
        f"{line if line.startswith('kept ') else f'{word} {line}'} on worker {fold_workers(workers)}"
        for line, workers in groups.items()
    ]
