"""One authenticated SSH connection to one worker, or the typed reason why there is none.

paramiko runs over a socket of our own, so every wait before authentication has a limit. Only the pinned
ssh-ed25519 host key is accepted, and it is compared before the user name leaves this machine. No agent,
no search for keys, no trust on first use.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tpuctl.errors import BadConfigError
from tpuctl.hosts.commands import LINK_SILENCE_S
from tpuctl.model.hosts import FailureKind, HostTarget
from tpuctl.ssh.errors import ConnectError

if TYPE_CHECKING:
    import paramiko

CHANNEL_TIMEOUT_S = 10.0
SLOT_POLL_S = 0.5
USER_TIMEOUT_MS = int(LINK_SILENCE_S * 1000)
"""TCP gives up on unacknowledged data after this: a cut cable shows in 12 s instead of 15 minutes."""
KEEPALIVE_IDLE_S = 4
KEEPALIVE_PROBES = 2

PARAMIKO_LOG = "tpuctl.paramiko"
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
_DIGESTS = ("hmac-sha2-256-etm@openssh.com", "hmac-sha2-256", "hmac-sha2-512")
_KEX = (
    "curve25519-sha256@libssh.org",
    "ecdh-sha2-nistp256",
    "diffie-hellman-group16-sha512",
    "diffie-hellman-group14-sha256",
)
"""One fast algorithm of each kind first. AES-GCM also avoids paramiko's MAC check in pure Python, a tenth of
the time of a connection."""


def load_private_key(path: Path) -> paramiko.PKey:
    """Reads our own key once; parsing it per host costs more than the handshake. BadConfigError if unusable."""
    from tpuctl.ssh.paramiko_tuning import paramiko

    # paramiko logs tracebacks of dead hosts as errors; every failure is reported by us, once, as a result.
    logging.getLogger(PARAMIKO_LOG).setLevel(logging.CRITICAL)
    try:
        return paramiko.Ed25519Key.from_private_key_file(str(path))
    except (OSError, paramiko.SSHException, ValueError) as error:
        raise BadConfigError(
            f"cannot read the SSH key {path}: {error}", hint="tpuctl doctor shows which key is used"
        ) from error


def limited(timeout_s: float, deadline: float | None) -> float:
    """A part of a call never takes longer than what is left of the whole."""
    return timeout_s if deadline is None else max(0.1, min(timeout_s, deadline - time.monotonic()))


@contextlib.contextmanager
def turn(
    slots: threading.Semaphore, deadline: float | None, is_cancelled: Callable[[], bool], late: str
) -> Iterator[None]:
    """Holds one of `slots`. Raises ConnectError if it is stopped while it waits for one, or the time is up:
    then `late` is why."""
    while not slots.acquire(timeout=SLOT_POLL_S):
        if is_cancelled():
            raise ConnectError(FailureKind.LOST, "stopped by this side")
        if deadline is not None and time.monotonic() >= deadline:
            raise ConnectError(FailureKind.TIMEOUT, late)
    try:
        yield
    finally:
        slots.release()


def open_connection(
    target: HostTarget,
    key: paramiko.PKey,
    *,
    connect_timeout_s: float,
    handshake_timeout_s: float,
    refused_for_s: float,
    handshake_slots: threading.Semaphore,
    deadline: float | None,
    is_cancelled: Callable[[], bool],
    proxy: tuple[str, ...] = (),
) -> paramiko.Transport:
    """Connects, through the command `proxy` if given, and authenticates; ConnectError otherwise. Nothing stays
    open after a failure."""
    if proxy:
        from tpuctl.ssh.proxy import open_proxy

        sock = open_proxy(proxy, target)
    else:
        sock = _connect(target, limited(connect_timeout_s, deadline), refused_for_s, is_cancelled)
    late = "other hosts were still logged in to when the time was up"
    try:
        with turn(handshake_slots, deadline, is_cancelled, late):
            return _handshake(sock, target, key, limited(handshake_timeout_s, deadline), is_cancelled)
    except BaseException:
        sock.close()
        raise


def _connect(
    target: HostTarget, timeout_s: float, refused_for_s: float, is_cancelled: Callable[[], bool]
) -> socket.socket:
    """A connected socket. Refused is tried once more at once, or until `refused_for_s` for a booting host."""
    deadline = time.monotonic() + refused_for_s
    attempt = 0
    while True:
        attempt += 1
        try:
            return _connect_once(target, timeout_s, is_cancelled)
        except ConnectionRefusedError as error:
            if attempt >= 2 and time.monotonic() >= deadline:
                raise ConnectError(
                    FailureKind.CONNECT, f"{target.address}:{target.port} refused the connection"
                ) from error
            time.sleep(0.1 if attempt == 1 else 0.5)
        except OSError as error:
            raise ConnectError(
                FailureKind.CONNECT,
                f"cannot connect to {target.address}:{target.port}: {error.strerror or error}",
            ) from error


def _connect_once(target: HostTarget, timeout_s: float, is_cancelled: Callable[[], bool]) -> socket.socket:
    # As bytes where it can: for text, Python imports the tables of international names first.
    host = target.address.encode() if target.address.isascii() else target.address
    family, kind, protocol, _, address = socket.getaddrinfo(host, target.port, type=socket.SOCK_STREAM)[0]
    from tpuctl.ssh.paramiko_tuning import BufferedSocket

    sock = BufferedSocket(family, kind, protocol)
    try:
        _tune(sock)
        sock.setblocking(False)
        sock.connect_ex(address)
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        deadline = time.monotonic() + timeout_s
        while not poll.poll(100):
            if is_cancelled():
                raise ConnectError(FailureKind.LOST, "stopped by this side")
            if time.monotonic() >= deadline:
                raise ConnectError(
                    FailureKind.CONNECT, f"{target.address}:{target.port} did not answer in {timeout_s:g} s"
                )
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        sock.setblocking(True)
    except BaseException:
        sock.close()
        raise
    return sock


def _tune(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_IDLE_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, option):  # macOS lacks some
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _handshake(
    sock: socket.socket,
    target: HostTarget,
    key: paramiko.PKey,
    timeout_s: float,
    is_cancelled: Callable[[], bool],
) -> paramiko.Transport:
    from tpuctl.ssh.paramiko_tuning import end, new_transport

    if is_cancelled():
        raise ConnectError(FailureKind.LOST, "stopped before the connection was made")
    transport = new_transport(sock)
    transport.set_log_channel(PARAMIKO_LOG)
    transport.banner_timeout = timeout_s
    transport.auth_timeout = timeout_s
    transport.channel_timeout = CHANNEL_TIMEOUT_S
    _prefer(transport)
    try:
        _exchange_keys(transport, target, timeout_s, is_cancelled)
        _check_host_key(transport, target)
        _authenticate(transport, target, key)
    except BaseException:
        end(transport)
        raise
    return transport


def _prefer(transport: paramiko.Transport) -> None:
    options = transport.get_security_options()
    options.key_types = ("ssh-ed25519",)
    options.ciphers = tuple(name for name in _CIPHERS if name in options.ciphers)
    options.digests = tuple(name for name in _DIGESTS if name in options.digests)
    options.kex = tuple(name for name in _KEX if name in options.kex)


def _negotiate(transport: paramiko.Transport, timeout_s: float, is_cancelled: Callable[[], bool]) -> None:
    """Everything up to the agreed keys; raises what paramiko's thread ran into."""
    done = threading.Event()
    transport.start_client(done)
    deadline = time.monotonic() + timeout_s
    while not done.wait(0.1):
        if is_cancelled():
            raise ConnectError(FailureKind.LOST, "stopped by this side")
        if time.monotonic() >= deadline:
            raise OSError(f"nothing for {timeout_s:g} s")
    if not transport.is_active():
        raise transport.get_exception() or EOFError()


def _exchange_keys(
    transport: paramiko.Transport, target: HostTarget, timeout_s: float, is_cancelled: Callable[[], bool]
) -> None:
    from tpuctl.ssh.paramiko_tuning import paramiko

    try:
        _negotiate(transport, timeout_s, is_cancelled)
    except paramiko.SSHException as error:
        if "host key" in str(error) and isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
            raise ConnectError(FailureKind.HOST_KEY, "the host offers no ssh-ed25519 host key") from error
        raise ConnectError(
            FailureKind.CONNECT,
            f"{target.address}:{target.port} accepted the connection but no SSH handshake followed: {error}",
        ) from error
    except (EOFError, OSError) as error:
        raise ConnectError(
            FailureKind.CONNECT,
            f"{target.address}:{target.port} broke off the SSH handshake: {error or 'connection closed'}",
        ) from error


def _check_host_key(transport: paramiko.Transport, target: HostTarget) -> None:
    words = target.host_key.split()
    if len(words) < 2 or words[0] != "ssh-ed25519":
        raise ConnectError(FailureKind.HOST_KEY, f"no ssh-ed25519 host key is known for {target.label}")
    server_key = transport.get_remote_server_key()
    if server_key.asbytes() != base64.b64decode(words[1] + "=="):
        raise ConnectError(
            FailureKind.HOST_KEY,
            f"{target.address}:{target.port} shows another host key ({server_key.fingerprint}) than "
            f"the cloud published for {target.label}",
        )


def _authenticate(transport: paramiko.Transport, target: HostTarget, key: paramiko.PKey) -> None:
    from tpuctl.ssh.paramiko_tuning import paramiko

    try:
        remaining = transport.auth_publickey(target.user, key)
    except (paramiko.SSHException, EOFError, OSError) as error:
        # paramiko raises AuthenticationException also where the connection ended before an answer; who refuses
        # a key leaves it open for another.
        if isinstance(error, paramiko.AuthenticationException) and transport.is_active():
            failure, said = FailureKind.AUTH, f"refused the key of user {target.user}"
        else:
            failure, said = FailureKind.CONNECT, "cut the connection during authentication"
        raise ConnectError(failure, f"{target.label} {said}: {error}") from error
    if remaining:
        raise ConnectError(FailureKind.AUTH, f"{target.label} wants more than a key: {', '.join(remaining)}")


def read_host_key(target: HostTarget, timeout_s: float, proxy: tuple[str, ...] = ()) -> str | None:
    """The ssh-ed25519 key that the host shows, or None; nothing about us is told."""
    from tpuctl.ssh.paramiko_tuning import end, new_transport

    ends = time.monotonic() + timeout_s
    try:
        if proxy:
            from tpuctl.ssh.proxy import open_proxy

            sock = open_proxy(proxy, target)
        else:
            sock = _connect(target, timeout_s, 0.0, _never)
    except ConnectError:
        return None
    transport = new_transport(sock)
    try:
        transport.set_log_channel(PARAMIKO_LOG)
        _prefer(transport)
        _exchange_keys(transport, target, max(0.1, ends - time.monotonic()), _never)
        return f"ssh-ed25519 {transport.get_remote_server_key().get_base64()}"
    except ConnectError:
        return None
    finally:
        end(transport)
        sock.close()


def _never() -> bool:
    return False
