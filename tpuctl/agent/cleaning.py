"""Ended attempts and contents that nothing uses go away."""

import os
import time

from base import COPY, ENDED, Refused, is_sha256, read_json, remove_tree, root, suppress
from contents import AREAS, blobs_of, find_tree
from state import list_attempts, look

ATTEMPTS_KEPT = 10  # ended ones, for their logs
SPARE_S = 3600.0  # content that no attempt uses stays this long: another client may be about to use it
STALE_S = 86400.0


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


def sweep(current):
    """Keeps the home directory from filling up: old attempts that are over, and content nobody uses."""
    over = []
    for attempt in list(list_attempts()):
        age = time.time() - os.stat(attempt.dir).st_mtime
        state = look(attempt)["state"]
        if state in ENDED and attempt.run.startswith(COPY):
            remove_ended(attempt.dir)  # what it was for is here
        elif attempt.dir != current.dir and (state in ENDED or (state == "prepared" and age > STALE_S)):
            over.append((age, attempt.dir))
    for _, folder in sorted(over)[ATTEMPTS_KEPT:]:
        remove_ended(folder)
    remove_blobs(SPARE_S)
    for area in AREAS:
        for name in list(aged_files(root(area), STALE_S)):
            if area != "blobs" or not is_sha256(name):
                drop(area, name)  # left by a copy, or by a transfer that broke off
