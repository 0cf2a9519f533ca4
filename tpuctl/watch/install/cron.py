"""The user's crontab, by crontab(1) alone: its spool is not ours to touch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tpuctl.errors import ConflictError, TpuctlError
from tpuctl.lib.files import wait_lock
from tpuctl.lib.programs import call, said

TRIES = 3


def read_crontab() -> str:
    """The whole crontab; empty when there is none. Bytes that are no UTF-8 survive a round trip."""
    done = call(["crontab", "-l"])
    if done.returncode == 0:
        return done.stdout.decode("utf-8", "surrogateescape")
    if b"no crontab for" in done.stderr:
        return ""
    raise TpuctlError(
        f"the crontab cannot be read: {said(done)}", hint="tpuctl watch install --systemd needs no crontab"
    )


def edit_crontab(edit: Callable[[str], str], lock: Path) -> bool:
    """Replaces the crontab by `edit` of it; False when that changes nothing.

    `lock` is the same file for all tpuctl of this user. Another program that writes in between is noticed:
    what it wrote is edited again. crontab(1) replaces the file in one step.
    """
    with wait_lock(lock):
        for _ in range(TRIES):
            before = read_crontab()
            after = edit(before)
            if after == before:
                return False
            done = call(["crontab", "-"], after.encode("utf-8", "surrogateescape"))
            if done.returncode != 0:
                raise TpuctlError(f"crontab refused the new table: {said(done)}", hint="crontab -l")
            if read_crontab() == after:
                return True
    raise ConflictError("something else keeps writing the crontab", hint="crontab -l, then try again")
