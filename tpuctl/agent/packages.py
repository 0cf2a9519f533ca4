"""Operations on the operating system: `install_packages`, in exact versions, by apt, and `set_hugepages`, a
setting of the kernel, which lasts until the next boot.

For minutes after it boots a host brings itself up to date, and its locks are taken: they are waited for. A lock
file is never removed; who holds it is at work.
"""

import os
import time

import lockfile
from facts import HUGEPAGES, hugepages, installed
from operations import Failed
from survivors import describe

LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
WAIT_S = 900  # unattended upgrades of a fresh image take up to ten minutes
INSTALL_S = 1800
SET_S = 10.0
APT = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=%d" % WAIT_S]
INSTALL = ["install", "--no-install-recommends", "--allow-downgrades", "-o", "Dpkg::Options::=--force-confold"]
UNKNOWN = ("Unable to locate package", "was not found")


def install_packages(parameters, job):
    """`packages`: {name: version}."""
    wanted = parameters["packages"]
    if installed(sorted(wanted)) == wanted:
        return {"installed": wanted}
    wait_for_locks(job)
    job.run(["dpkg", "--configure", "-a"], root=True, seconds=INSTALL_S)  # of an installation that was killed
    install = [*APT, *INSTALL, *("%s=%s" % item for item in sorted(wanted.items()))]
    try:
        job.run(install, root=True, seconds=INSTALL_S)
    except Failed:
        # It may not have heard of them yet.
        job.run([*APT, "update"], root=True, seconds=INSTALL_S)
        try:
            job.run(install, root=True, seconds=INSTALL_S)
        except Failed as error:
            raise Failed(str(error), permanent=any(text in str(error) for text in UNKNOWN)) from error
    return {"installed": installed(sorted(wanted))}


def wait_for_locks(job, locks=LOCKS, limit_s=WAIT_S):
    until, told = time.monotonic() + limit_s, ""
    while True:
        held = held_locks(locks)
        if not held:
            return
        if time.monotonic() > until:
            raise Failed("%s, still after %d s" % (held, limit_s))
        if held != told:
            job.say("waiting: %s" % held)
            told = held
        time.sleep(1.0)


def held_locks(locks):
    """Which lock is held by whom, for a person; nothing where none is."""
    for path in locks:
        try:
            pids = lockfile.holders(os.stat(path).st_ino)
        except OSError:
            continue  # not made yet
        if pids:
            return "%s is held by %s" % (path, describe(pids))
    return ""


def set_hugepages(parameters, job):
    """`mode`: always, madvise or never."""
    mode = parameters["mode"]
    if hugepages() != mode:
        job.run(["sh", "-c", 'echo "$1" > "$2"', "sh", mode, HUGEPAGES], root=True, seconds=SET_S)
    found = hugepages()
    if found != mode:
        raise Failed("transparent hugepages are still %s" % (found or "not there"), permanent=True)
    return {"transparent_hugepages": found}
