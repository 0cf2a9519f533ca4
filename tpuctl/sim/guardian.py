"""The simulator's parent process: whatever happens to the server, no process of a host outlives it.

As a child subreaper it inherits every orphan of the hosts. When the server ends, also by kill -9, the guardian
kills what is left; when the guardian itself is killed, the server gets SIGTERM from the kernel and cleans up.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from tpuctl.sim.control import guardian_lock, status, sweep
from tpuctl.sim.processes import adopt_orphans, kill_descendants

TURN_TIMEOUT_S = 15.0
"""A predecessor needs this long at most to kill its hosts."""


def guard(state_dir: Path, options: str) -> int:
    """Waits for its turn, runs the server to its end and cleans up behind it; an exit code."""
    deadline = time.monotonic() + TURN_TIMEOUT_S
    while time.monotonic() < deadline:
        with guardian_lock(state_dir) as ours:
            if ours:
                return _run_server(state_dir, options)
        if status(state_dir) is not None:
            return 0  # somebody was faster, and it runs
        time.sleep(0.05)
    sys.stderr.write("another simulator is still cleaning up in this state directory\n")
    return 1


def _run_server(state_dir: Path, options: str) -> int:
    sweep(state_dir)
    adopt_orphans()
    world_id = secrets.token_hex(4)
    server = subprocess.Popen(
        [sys.executable, "-m", "tpuctl.sim.server", str(state_dir), options, world_id, str(os.getpid())],
        stdin=subprocess.DEVNULL,
    )

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        server.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    code = server.wait()
    kill_descendants()
    sweep(state_dir)
    return code


def main() -> int:
    state_dir, options = sys.argv[1:3]
    return guard(Path(state_dir), options)


if __name__ == "__main__":
    sys.exit(main())
