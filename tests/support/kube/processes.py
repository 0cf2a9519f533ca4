"""Programs of the rig: started with a log each, waited for, and stopped in the opposite order."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import requests

START_TIMEOUT_S = 120.0
"""The API server serves after 6 s, at load 30 after a minute."""
STOP_TIMEOUT_S = 10.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Processes:
    """What was started in a folder, which has NAME.log of each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, words: Sequence[str | Path]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                # Ends with pytest, however that ends: a session of its own outlives it.
                ["setpriv", "--pdeathsig", "KILL", *(str(word) for word in words)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
                start_new_session=True,
            )

    def wait(self, name: str, ready: Callable[[], bool]) -> None:
        """Until the program is ready. Raises with the end of its log when it ended, or is not ready in time."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(requests.RequestException):
                if ready():
                    return
            ended = self._running[name].poll()
            if ended is not None or time.monotonic() > deadline:
                log = (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]
                what = "is not ready in time" if ended is None else f"ended with {ended}"
                raise RuntimeError(f"{name} {what}:\n{log}")
            time.sleep(0.1)

    def cpu_s(self, name: str) -> float:
        """Seconds of a processor that a running program took."""
        fields = Path(f"/proc/{self._running[name].pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        for process in reversed(self._running.values()):
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    made = Processes(folder)
    try:
        yield made
    finally:
        made.stop()


def start_etcd(programs: Processes, binary: Path) -> str:
    """Its address. Data is not synced to the disk: nothing of it outlives the test."""
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    words = (
        "--data-dir",
        "etcd",
        "--unsafe-no-fsync",
        "--log-level",
        "error",
        "--initial-cluster",
        f"default={peer}",
    )
    clients = ("--listen-client-urls", client, "--advertise-client-urls", client)
    peers = ("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer)
    programs.start("etcd", (binary, *words, *clients, *peers))
    programs.wait("etcd", lambda: requests.get(f"{client}/health", timeout=5).ok)
    return client
