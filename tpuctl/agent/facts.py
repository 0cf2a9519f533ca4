"""`facts`: what this host is and has, in one answer. A client asks for the sections that it wants.

Nothing here changes anything, waits for a lock, or hangs with a dead file system: what may hang is tried in a
child, and what takes too long is given up. A section that cannot be had says why in place of its value. With
`patience_s` it waits before, so long at most, for the end of provisioning jobs.
"""

import gc
import os
import sys
import time

import machine
from base import Refused
from processes import boot_id
from rooted import how_root, output_of

SECTIONS = {
    "jobs": "jobs",  # first: what else is told was read after these had their states
    "host": "facts",
    "pythons": "facts",
    "space": "facts_storage",
    "disks": "disks",
    "points": "points",
    "gcsfuse": "buckets",
    "engine": "engines",
    "chips": "facts_chips",
    "envs": "facts_envs",
    "kernel": "facts",
    "variables": "facts_envs",
}
"""Each is answered by the function `NAME_facts` of its module, in this order."""
HUGEPAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
ASK_VERSION = "import sys; print('%d.%d.%d' % sys.version_info[:3])"


def facts(request, _stdin):
    gc.disable()  # it would look at thousands of files' rows again and again, none of which is garbage
    wanted = request.get("sections") or list(SECTIONS)
    unknown = [name for name in wanted if name not in SECTIONS]
    if unknown:
        raise Refused("bad-request", "no such sections: %s" % ", ".join(map(str, unknown)))
    if request.get("patience_s"):
        from jobs import jobs, wait_for_jobs

        wait_for_jobs(jobs(), request)
    answer, failed = {"schema": 1, "boot_id": boot_id(), "machine": os.uname().machine}, {}
    for name, module in SECTIONS.items():
        if name in wanted:
            try:
                answer[name] = getattr(__import__(module), name + "_facts")(request)
            except Exception as error:
                # One odd host file must not hide all else that is known.
                failed[name] = "%s: %s" % (type(error).__name__, error)
    return dict(answer, failed=failed, time=time.time())


def host_facts(_request):
    return dict(machine.basics(), root=how_root(), os=os_name())


def os_name():
    """PRETTY_NAME of os-release(5)."""
    try:
        with open("/etc/os-release") as file:
            for line in file:
                if line.startswith("PRETTY_NAME="):
                    return line.partition("=")[2].strip().strip('"')
    except OSError:
        pass  # optional by its manual
    return ""


def pythons_facts(_request):
    """Interpreters on PATH, each once, by the name that one types."""
    names = ["python3"] + ["python3.%d" % minor for minor in range(8, 20)]
    # This program's own need not be started to be asked: hosts have no other one as a rule.
    versions = {identity(sys.executable): "%d.%d.%d" % sys.version_info[:3]}
    found, seen = [], set()
    for folder in (os.environ.get("PATH") or os.defpath).split(os.pathsep):
        for name in names:
            path = os.path.join(folder, name)
            if not os.access(path, os.X_OK) or identity(path) in seen:
                continue
            seen.add(identity(path))
            said = versions.get(identity(path)) or output_of([path, "-I", "-S", "-c", ASK_VERSION])
            if said is not None:
                found.append({"path": path, "version": said.strip()})
    return found


def identity(path):
    """What two names of one file share."""
    known = os.stat(path)
    return known.st_dev, known.st_ino


def kernel_facts(_request):
    import resource

    def limit(which):
        return [None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(which)]

    return {
        "transparent_hugepages": hugepages(),
        "memlock_bytes": limit(resource.RLIMIT_MEMLOCK),
    }


def hugepages():
    """The mode of transparent hugepages: `madvise` of `always [madvise] never`; nothing in a kernel without."""
    try:
        with open(HUGEPAGES) as file:
            line = file.read().strip()
    except OSError:
        return ""
    return line.partition("[")[2].partition("]")[0] or line


def installed(names):
    """{package: version} of those of the named packages that dpkg has."""
    if not names:
        return {}
    form = "-f=${Package} ${Version} ${db:Status-Status}\\n"
    said = output_of(["dpkg-query", "-W", form, "--", *names], any_status=True) or ""
    rows = [line.split() for line in said.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}
