"""What `tpuctl exec` does on hosts, without asking the cloud first: FARM.json (plain|session) COMMAND."""

from __future__ import annotations

import atexit
import gc
import json
import sys
from contextlib import closing
from pathlib import Path

from tpuctl.cli.console import Console
from tpuctl.cli.live import Renderer
from tpuctl.engine.events import WorkerOutput
from tpuctl.engine.ports import RemoteCall
from tpuctl.model.cloud import HostTarget
from tpuctl.ssh.remote import SshRemote

gc.set_threshold(100_000, 20, 100)  # as the console script does
atexit.register(gc.freeze)


def main(farm_file: str, mode: str, command: str) -> int:
    farm = json.loads(Path(farm_file).read_text())
    targets = [
        HostTarget("big", worker, address, farm["port"], farm["user"], farm["host_public"])
        for worker, address in enumerate(farm["hosts"])
    ]
    emit = Renderer(Console(json_mode=False, quiet=False, label=""))

    def sink(worker: int, stream: str, data: bytes) -> None:
        emit(WorkerOutput("big", worker, stream, data, len(targets)))

    with closing(SshRemote(Path(farm["key"]))) as remote:
        if mode == "session":
            from tpuctl.hosts.agent import HostAgent
            from tpuctl.model.shipped_files import read_agent

            results = HostAgent(remote, read_agent()).session(targets, command, sink)
        else:
            results = remote.run(targets, RemoteCall(command, sink=sink, timeout_s=None))
    emit.close()
    for result in results:
        if not result.ok:
            print(result.worker, result.failure, result.detail, result.exit_status, file=sys.stderr)
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
