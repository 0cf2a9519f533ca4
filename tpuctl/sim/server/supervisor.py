"""The simulator's parent process: whatever happens to the server, no process of a host outlives it.

As a child subreaper it inherits every orphan of the hosts. When the server ends, also by kill -9, the guardian
kills what is left; when the guardian itself is killed, the server gets SIGTERM from the kernel and cleans up.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from tpuctl.errors import ConflictError
from tpuctl.sim.hosts.init import become_subreaper, kill_descendants
from tpuctl.sim.server.options import SimOptions
from tpuctl.sim.server.processes import die_with_parent
from tpuctl.sim.server.state_dir import LOG_FILE, failure, guardian_lock, status, sweep

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


def run_foreground(state_dir: Path, options: SimOptions) -> None:
    """The simulator below this process, until Ctrl-C, and never longer than this process. Raises ConflictError
    when one runs here already.

    Call it from the main thread: it takes over the signals that end it.
    """
    options.check()
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with guardian_lock(state_dir) as ours, (state_dir / LOG_FILE).open("ab") as log:
        if not ours:
            raise ConflictError(
                f"a simulator runs already with state in {state_dir}", hint="`tpuctl sim down` ends it"
            )
        log.truncate(0)
        if _run_server(state_dir, json.dumps(options.to_json()), log):
            raise failure(state_dir, "the simulator failed")


def _run_server(state_dir: Path, options: str, log: BinaryIO | None = None) -> int:
    """`log` gets what the server says, where that is not for this process's own stderr."""
    sweep(state_dir)
    become_subreaper()
    world_id = os.urandom(4).hex()
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tpuctl.sim.server.process",
            str(state_dir),
            options,
            world_id,
            str(os.getpid()),
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
    )

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        server.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    code = server.wait()
    kill_descendants({})
    sweep(state_dir)
    return code


def main() -> int:
    state_dir, options = sys.argv[1:3]
    for owner in sys.argv[3:]:  # whose simulator it is: it ends with that process
        die_with_parent()
        if os.getppid() != int(owner):
            return 1  # gone before the kernel was told to tell us
    return guard(Path(state_dir), options)


if __name__ == "__main__":
    sys.exit(main())
