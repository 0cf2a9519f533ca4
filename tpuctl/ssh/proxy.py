"""A connection through a program of the user's: a ProxyCommand whose stdin and stdout are the connection."""

from __future__ import annotations

import contextlib
import socket
import subprocess

from tpuctl.config.proxy import render_proxy
from tpuctl.errors import BadConfigError
from tpuctl.model.hosts import FailureKind, HostTarget
from tpuctl.ssh.errors import ConnectError
from tpuctl.ssh.paramiko_tuning import BufferedSocket

END_WAIT_S = 2.0


class ProxySocket(BufferedSocket):
    """Our end; closing it ends the program."""

    process: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        super().close()
        process, self.process = self.process, None
        if process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.terminate()
            process.wait(END_WAIT_S)
            return
        process.kill()
        process.wait()


def open_proxy(words: tuple[str, ...], target: HostTarget) -> socket.socket:
    """Starts the program. ConnectError if it cannot be started; what it fails at shows in the handshake."""
    try:
        argv = render_proxy(words, target)
    except BadConfigError as error:
        raise ConnectError(FailureKind.CONNECT, error.message) from error
    ours, theirs = socket.socketpair()
    sock = ProxySocket(fileno=ours.detach())
    try:
        # Its own session: Ctrl-C is ours to handle, after the sessions are ended.
        end = theirs.fileno()
        sock.process = subprocess.Popen(argv, stdin=end, stdout=end, start_new_session=True)
    except OSError as error:
        sock.close()
        raise ConnectError(
            FailureKind.CONNECT, f"the proxy command {argv[0]!r} cannot be started: {error.strerror}"
        ) from error
    finally:
        theirs.close()
    return sock
