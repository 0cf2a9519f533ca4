"""`prepare`: the working copy of an attempt, from contents that are here already. Ended attempts
and contents that nothing uses go away then."""

import os
import time

from base import (
    COPY,
    ENDED,
    PROVISION,
    SCHEMA,
    Attempt,
    Refused,
    is_sha256,
    make_dir,
    need_sha,
    read_json,
    remove_tree,
    root,
    suppress,
    write_json,
)
from contents import AREAS, blobs_of, check_links, check_tree, find_tree, has_blob, materialise
from state import list_attempts, look

COORDINATOR_PORT = 8476
"""One of those that Google opens between the hosts of a slice by itself (jax-ml/jax issue 35905)."""
ATTEMPTS_KEPT = 10  # ended ones, for their logs
SPARE_S = 3600.0  # content that no attempt uses stays this long: another client may be about to use it
STALE_S = 86400.0


def prepare(request, _stdin):
    attempt, fence, bundle = Attempt(request), request["fence"], request["bundle"]
    entries = read_bundle(bundle)
    if entries is None:
        return {"prepared": False}
    attempt.locked()
    attempt.check_fence(fence)
    if request["promised"]:
        from facts_storage import check_promised

        check_promised(request["promised"])
    make_prepared(attempt, fence, bundle, entries, request["kept"])
    answer = {"prepared": True}
    wanted = request["want_port"]
    if wanted is not None:
        usual = wanted or COORDINATOR_PORT
        answer.update(find_port(int(os.environ.get("TPUCTL_COORDINATOR_PORT") or usual)))
    return answer


def read_bundle(bundle):
    """The entries of a tree, none without one; None where not all of it is here, of which `lacks` tells."""
    if bundle is None:
        return []
    entries = find_tree("blobs", need_sha(bundle))
    if entries is None:
        return None
    check_tree(entries, links_inside=True)
    return entries if all(has_blob("blobs", digest, size) for digest, size in blobs_of(entries)) else None


def make_prepared(attempt, fence, bundle, entries, kept=()):
    """Prepares an attempt whose lock this process holds, or finds that this was done. `kept`: folders of ended
    attempts that only so many of them keep."""
    prepared = read_json(attempt.path("prepared.json"))
    if prepared is None:
        make_work(attempt, entries)
        write_json(attempt.path("prepared.json"), {"schema": SCHEMA, "bundle": bundle, "fence": fence})
        sweep(attempt, dict(kept))
    elif prepared.get("bundle") != bundle:
        raise Refused("conflict", "attempt %s was prepared with other code" % attempt.number)


def find_port(wanted):
    """The port that is wanted where it is free, else any; 0 wants any."""
    free = free_port(wanted)
    if free is None:
        return {"free_port": free_port(0), "taken_port": wanted}
    return {"free_port": free}


def free_port(port):
    """`port` if nobody listens there, and for 0 any; None where it is taken. As servers do, it minds no
    connections that are over."""
    from metadata import socket

    probe = socket.socket()
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", port))
        probe.listen(1)
        return probe.getsockname()[1]
    except OSError:
        if not port:
            raise
        return None
    finally:
        probe.close()


def make_work(attempt, entries):
    """`work` appears whole or not at all; leftovers of a crash are removed."""
    make_dir(attempt.dir)
    for name in os.listdir(attempt.dir):
        if name == "work" or name.startswith("work.tmp"):
            remove_tree(attempt.path(name))
    temp = attempt.path("work.tmp.%d" % os.getpid())
    os.mkdir(temp, 0o700)
    try:
        # Operations of ours write into no file that came with them, so that wheels need no second copy.
        link = attempt.run.startswith(PROVISION)
        materialise(entries, os.fsencode(temp), "blobs", 0o700, link)
        check_links(entries, os.fsencode(temp))
        os.rename(temp, attempt.path("work"))
    except BaseException:
        import shutil  # takes longer than most that is prepared here

        shutil.rmtree(temp, ignore_errors=True)
        raise


def remove_blobs(older_than):
    """Removes content of runs that no attempt on this host uses, and no copy is about to complete."""
    used = set()
    for attempt in list_attempts():
        prepared = read_json(attempt.path("prepared.json")) or {}
        bundle = prepared.get("bundle")
        if bundle is None and look(attempt)["state"] not in ENDED:
            bundle = prepared.get("wanted")
        if bundle is not None:
            used.add(bundle)
            used.update(digest for digest, _ in blobs_of(find_tree("blobs", bundle) or []))
    for name in list(aged_files(root("blobs"), older_than)):
        if is_sha256(name) and name not in used:
            drop("blobs", name)


def drop(area, name):
    with suppress(FileNotFoundError):
        os.unlink(root(area, name))


def aged_files(folder, older_than):
    now = time.time()
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        with suppress(FileNotFoundError):
            if now - os.lstat(os.path.join(folder, name)).st_mtime >= older_than:
                yield name


def remove_ended(folder):
    """What cannot be removed now, such as where a program left a mount, stays."""
    with suppress(OSError, Refused):
        remove_tree(folder)


def remove_copy(attempt):
    """A copy that has ended: what it was for is here. Not while somebody may begin it again."""
    import fcntl

    lock = attempt.open_lock()
    try:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if look(attempt)["state"] in ENDED:
                remove_ended(attempt.dir)
    finally:
        os.close(lock)


def sweep(current, kept):
    """Keeps the home directory from filling up: old attempts that are over, what is large of those that stay,
    and content nobody uses."""
    over = []
    for attempt in list(list_attempts()):
        try:
            age = time.time() - os.stat(attempt.dir).st_mtime
        except FileNotFoundError:  # another one does the same
            continue
        state = look(attempt)["state"]
        if state in ENDED and attempt.run.startswith(COPY):
            remove_copy(attempt)
        elif attempt.dir != current.dir and (state in ENDED or (state == "prepared" and age > STALE_S)):
            over.append((age, attempt.dir))
    for _, folder in sorted(over)[ATTEMPTS_KEPT:]:
        remove_ended(folder)
    for name, count in kept.items():
        having = [path for _, each in sorted(over) if os.path.isdir(path := os.path.join(each, name))]
        for path in having[count:]:
            remove_ended(path)
    remove_blobs(SPARE_S)
    for area in AREAS:
        for name in list(aged_files(root(area), STALE_S)):
            if area != "blobs" or not is_sha256(name):
                drop(area, name)  # left by a copy, or by a transfer that broke off
