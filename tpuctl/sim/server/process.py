"""The server's own process: builds the simulator, publishes where it answers, ends it cleanly."""

from __future__ import annotations

import importlib
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from tpuctl.lib.files import write_private
from tpuctl.sim.api.oauth import authorized_user
from tpuctl.sim.hosts.process.backend import HOST_MODULE
from tpuctl.sim.server.environment import write_gcloud_account
from tpuctl.sim.server.info import SimInfo
from tpuctl.sim.server.options import PROCESS, SimOptions
from tpuctl.sim.server.processes import die_with_parent, kill_world, start_time
from tpuctl.sim.server.state_dir import (
    BUCKETS_FOLDER,
    CREDENTIALS_FILE,
    INFO_FILE,
    PROFILE_FILE,
    TOKEN_FILE,
    save_info,
    world_folder,
)

SIGNAL_POLL_S = 0.1


def wait_for_end(stopped: threading.Event) -> None:
    """Blocks until a signal or the admin API ends the server."""
    # A signal that comes while this thread is about to wait is noticed when the wait ends: so it must end.
    while not stopped.wait(SIGNAL_POLL_S):
        pass


def serve(state_dir: Path, options: SimOptions, world_id: str, guardian_pid: int) -> None:
    """Runs until a signal or the admin API's shutdown; the state directory is as empty as before then, except
    for what was written into buckets: like the real ones they outlive every machine."""
    from tpuctl.sim.server.simulator import Simulator, new_token

    token = new_token()
    token_file = state_dir / TOKEN_FILE
    write_private(token_file, token.encode())
    account = authorized_user(token)
    write_private(state_dir / CREDENTIALS_FILE, (json.dumps(account, indent=1) + "\n").encode())
    root = world_folder(state_dir, world_id)
    root.mkdir(mode=0o700, exist_ok=True)
    buckets = state_dir / BUCKETS_FOLDER
    simulator = Simulator(root, options, world_id=world_id, token=token, buckets=buckets)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # before anybody is told whom to send one
        signal.signal(number, lambda *_: simulator.stopped.set())
    write_gcloud_account(state_dir, authorized_user(token, f"{simulator.endpoint}/token"))
    save_info(
        state_dir,
        SimInfo(
            pid=os.getpid(),
            pid_started=start_time(os.getpid()),
            guardian_pid=guardian_pid,
            world_id=world_id,
            http=simulator.endpoint,
            grpc=simulator.grpc_endpoint,
            token_file=str(token_file),
            https=simulator.https.endpoint,
            ca_file=str(simulator.https.ca_file),
            ssh_port=simulator.ssh_port,
            hosts=options.hosts,
            project=options.project,
            started=time.time(),
            options=options.to_json(),
        ),
    )
    if options.hosts == PROCESS:  # who asks for a node waits for it, who starts the simulator does not
        threading.Thread(target=importlib.import_module, args=(HOST_MODULE,), daemon=True).start()
    try:
        wait_for_end(simulator.stopped)
    finally:
        for name in (INFO_FILE, PROFILE_FILE):  # nobody else does, if the guardian was killed
            (state_dir / name).unlink(missing_ok=True)
        simulator.close()
        kill_world(world_id)
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    state_dir, options, world_id, guardian_pid = sys.argv[1:5]
    die_with_parent()
    if os.getppid() != int(guardian_pid):
        return  # the guardian died before the kernel was told to tell us
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # A dozen lines for each connection: an eighth of the time of the hosts' SSH servers, and a log without end.
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    serve(Path(state_dir), SimOptions(**json.loads(options)), world_id, int(guardian_pid))


if __name__ == "__main__":
    main()
