"""The web server of `tpuctl ui`: on loopback alone, until Ctrl-C."""

from __future__ import annotations

import errno
import socket
import threading

import uvicorn

from tpuctl.engine.services import Services
from tpuctl.errors import UsageError
from tpuctl.ui.access import Gate
from tpuctl.ui.app import make_app

LOOPBACK = "127.0.0.1"
END_S = 2.0
"""For what browsers hold open, once the end was asked for."""


def listen(port: int) -> socket.socket:
    """A socket on loopback; 0 is any free port. Raises UsageError for a port that is taken or forbidden."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((LOOPBACK, port))
        found.listen()
    except OSError as error:
        found.close()
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        why = "in use" if error.errno == errno.EADDRINUSE else "only for root"
        raise UsageError(
            f"port {port} is {why}", hint="another --port, or none: then a free one is taken"
        ) from error
    return found


def serve(services: Services, gate: Gate, listening: socket.socket) -> None:
    """Serves the pages until a signal ends this process's wait. Raises KeyboardInterrupt at Ctrl-C."""
    stopped = threading.Event()
    config = uvicorn.Config(
        make_app(services, gate, stopped),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=int(END_S),
    )
    server = _Server(config, stopped)
    try:
        server.run(sockets=[listening])
    finally:
        stopped.set()


class _Server(uvicorn.Server):
    """Ends what is kept open as soon as the end is asked for: pages never close by themselves."""

    def __init__(self, config: uvicorn.Config, stopped: threading.Event) -> None:
        super().__init__(config)
        self._stopped = stopped

    def handle_exit(self, sig: int, frame: object) -> None:
        self._stopped.set()
        super().handle_exit(sig, frame)  # type: ignore[arg-type]
