"""Connections to workers, at most one each: opened by whoever needs it first, kept, replaced when they died."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from tpuctl.model.hosts import FailureKind, HostTarget
from tpuctl.ssh.connection import CHANNEL_TIMEOUT_S, load_private_key, open_connection, read_host_key
from tpuctl.ssh.errors import ConnectError

if TYPE_CHECKING:
    import paramiko

BOOT_RETRY_S = 10.0
"""How long a refused connection is retried when the host may still be booting."""


CONNECT_TIMEOUT_S = 5.0
HANDSHAKE_TIMEOUT_S = 10.0


class Access(Struct, frozen=True):
    """How connections are made: with which key, through which command, and how long each part may take.

    `boot_retry` keeps trying a refused connection for a while: a host that is READY may not have its sshd yet.
    """

    private_key_path: Path
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S
    boot_retry: bool = False
    proxy: tuple[str, ...] = ()


class _Slot:
    """The place of one target in the pool."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.transport: paramiko.Transport | None = None

    def close(self) -> None:
        """Waits for paramiko's thread."""
        if self.transport is not None:
            from tpuctl.ssh.paramiko_tuning import end

            end(self.transport)
            self.transport = None


class ConnectionPool:
    """Authenticated connections by target; `max_handshakes` of them are made at once."""

    def __init__(self, access: Access, max_handshakes: int) -> None:
        self._access = access
        self._handshakes = threading.BoundedSemaphore(max_handshakes)
        self._lock = threading.Lock()
        self._slots: dict[HostTarget, _Slot] = {}
        self._key: paramiko.PKey | None = None
        self._closed = False

    def load_key(self) -> paramiko.PKey:
        """Our key, read once. BadConfigError if it cannot be used."""
        with self._lock:
            if self._key is None:
                self._key = load_private_key(self._access.private_key_path)
            return self._key

    def connection(
        self, target: HostTarget, deadline: float | None, is_cancelled: Callable[[], bool]
    ) -> paramiko.Transport:
        """The connection to `target`, made if there is none that lives. ConnectError."""
        with self._lock:
            slot = self._slots.setdefault(target, _Slot())
        with slot.lock:
            if slot.transport is not None and slot.transport.is_active():
                return slot.transport
            slot.close()
            if self._closed or is_cancelled():
                raise ConnectError(FailureKind.LOST, "stopped by this side")
            access = self._access
            slot.transport = open_connection(
                target,
                self.load_key(),
                connect_timeout_s=_limited(access.connect_timeout_s, deadline),
                handshake_timeout_s=_limited(access.handshake_timeout_s, deadline),
                refused_for_s=BOOT_RETRY_S if access.boot_retry else 0.0,
                handshake_slot=self._handshakes,
                is_cancelled=is_cancelled,
                proxy=access.proxy,
            )
            return slot.transport

    def open_session(
        self, target: HostTarget, window_bytes: int, deadline: float | None, is_cancelled: Callable[[], bool]
    ) -> tuple[paramiko.Transport, paramiko.Channel]:
        """A channel for a command on the kept connection; one that died is replaced once. ConnectError."""
        try:
            return self._open_session(target, window_bytes, deadline, is_cancelled)
        except ConnectError as error:
            if error.kind is not FailureKind.LOST or is_cancelled():
                raise
        return self._open_session(target, window_bytes, deadline, is_cancelled)

    def _open_session(
        self, target: HostTarget, window_bytes: int, deadline: float | None, is_cancelled: Callable[[], bool]
    ) -> tuple[paramiko.Transport, paramiko.Channel]:
        from tpuctl.ssh.paramiko_tuning import hang_up, paramiko

        transport = self.connection(target, deadline, is_cancelled)
        try:
            return transport, transport.open_session(
                window_size=window_bytes, timeout=_limited(CHANNEL_TIMEOUT_S, deadline)
            )
        except paramiko.ChannelException as error:
            raise ConnectError(
                FailureKind.CONNECT, f"{target.label} opens no further session: {error.text}"
            ) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            hang_up(transport)
            raise ConnectError(
                FailureKind.LOST, f"the connection to {target.label} was lost: {error}"
            ) from error

    def read_host_key(self, target: HostTarget, timeout_s: float) -> str | None:
        """The ssh-ed25519 key that the host shows, or None; on a connection of its own."""
        return read_host_key(target, timeout_s, self._access.proxy)

    def refuse_more(self) -> None:
        """No connection is made from now on."""
        self._closed = True

    def close(self) -> None:
        """All hang up before any is waited for: their threads end side by side."""
        self.refuse_more()
        with self._lock:
            slots = list(self._slots.values())
            self._slots.clear()
        for slot in slots:
            with slot.lock:
                if slot.transport is not None:
                    from tpuctl.ssh.paramiko_tuning import hang_up

                    hang_up(slot.transport)
        for slot in slots:
            slot.close()


def _limited(timeout_s: float, deadline: float | None) -> float:
    """A part of a call never takes longer than what is left of the whole."""
    return timeout_s if deadline is None else max(0.1, min(timeout_s, deadline - time.monotonic()))
