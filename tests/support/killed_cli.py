"""The real command line, killed at its K-th change.

Counts the calls that change the store, the cloud or a host, and sends this process SIGKILL before or after the
K-th took effect.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import cached_property
from typing import Any

from tests.support.crashing import (
    CLOUD_CHANGES,
    DISK_CHANGES,
    STORE_CHANGES,
    Crashing,
    CrashPoint,
    remote_changes,
)
from tpuctl.cli.context import AppContext
from tpuctl.cli.main import main


class KillPoint(CrashPoint):
    """Dies for real."""

    def around(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.count += 1
        if self.count != self.at:
            return call(*args, **kwargs)
        if self.after:
            call(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive after SIGKILL")


def arm(point: KillPoint) -> None:
    """Puts `point` between the workflows and the adapters that the command line builds."""
    changes: dict[str, Callable[[str, tuple[Any, ...]], bool]] = {
        "local_store": lambda name, _: name in STORE_CHANGES,
        "cloud": lambda name, _: name in CLOUD_CHANGES,
        "_compute_tpus": lambda name, _: name in CLOUD_CHANGES,
        "disks": lambda name, _: name in DISK_CHANGES,
        "objects": lambda name, _: name in {"write", "upload", "delete"},
        "remote": remote_changes,
    }
    for attribute, test in changes.items():
        original = AppContext.__dict__[attribute]

        def make(context: AppContext, original: Any = original, test: Any = test) -> Any:
            return Crashing(original.func(context), point, test)

        replacement = cached_property(make)
        replacement.__set_name__(AppContext, attribute)
        setattr(AppContext, attribute, replacement)


def main_until_killed(at: int, when: str) -> None:
    """`main` of this process, killed "before" or "after" its `at`-th change; 0 kills nothing, and prints how
    many changes there were."""
    point = KillPoint(at or None, after=when == "after")
    arm(point)
    try:
        main()
    finally:
        print(f"changes: {point.count}", file=sys.stderr)
