"""`prepare`: the working copy of an attempt, from contents that are here already."""

import os

from base import (
    PROVISION,
    SCHEMA,
    Attempt,
    Refused,
    make_dir,
    need,
    need_sha,
    read_json,
    remove_tree,
    write_json,
)
from cleaning import sweep
from contents import blobs_of, check_links, check_tree, find_tree, has_blob, materialise

COORDINATOR_PORT = 8476
"""One of those that Google opens between the hosts of a slice by itself (jax-ml/jax issue 35905)."""
MISSING_NAMED = 100  # an answer stays small; what exactly is missing is asked with `lacks`


def prepare(request, _stdin):
    attempt, fence = Attempt(request), need(request, "fence", int)
    bundle = request.get("bundle")
    entries, missing = read_bundle(bundle)
    if missing:
        return {"missing": missing}
    attempt.locked()
    attempt.check_fence(fence)
    if request.get("promised"):
        from facts_storage import check_promised

        check_promised(request["promised"])
    make_prepared(attempt, fence, bundle, entries)
    answer = {"prepared": True}
    wanted = request.get("want_port")
    if wanted:
        usual = COORDINATOR_PORT if wanted is True else int(wanted)
        answer.update(find_port(int(os.environ.get("TPUCTL_COORDINATOR_PORT") or usual)))
    return answer


def read_bundle(bundle):
    """The entries of a tree, none without one, and the contents of it that are missing here."""
    if bundle is None:
        return [], []
    entries = find_tree("blobs", need_sha(bundle))
    if entries is None:
        return [], [bundle]
    check_tree(entries, links_inside=True)
    lacking = [digest for digest, size in blobs_of(entries) if not has_blob("blobs", digest, size)]
    return entries, lacking[:MISSING_NAMED]


def make_prepared(attempt, fence, bundle, entries):
    """Prepares an attempt whose lock this process holds, or finds that this was done."""
    prepared = read_json(attempt.path("prepared.json"))
    if prepared is None:
        make_work(attempt, entries)
        write_json(attempt.path("prepared.json"), {"schema": SCHEMA, "bundle": bundle, "fence": fence})
        sweep(attempt)
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
