"""Connections to workers, at most one each: opened by whoever needs it first, kept, replaced when they died."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from tpuctl.lib.text import counted
from tpuctl.model.hosts import FailureKind, HostTarget
from tpuctl.ssh.connection import (
    CHANNEL_TIMEOUT_S,
    limited,
    load_private_key,
    open_connection,
    read_host_key,
)
from tpuctl.ssh.errors import ConnectError

if TYPE_CHECKING:
    import paramiko

BOOT_RETRY_S = 10.0
"""How long a refused connection is retried when the host may still be booting."""


REST_S = (10.0, 20.0, 40.0, 80.0, 160.0, 240.0)
"""How long a host is left alone after it refused a log-in, by how often it did. Google's Ubuntu images come
with sshguard, which bans an address after the third or fourth within minutes (its defaults: attacks of 10, a
threshold of 30; seen in github.com/trailofbits/algo/issues/1548)."""
BANNED_MAX_S = 900.0
"""So long after a refusal silence may mean such a ban."""

CHANNEL_LEAST_S = 2.0
"""A channel has this long to open also where less is left of a call: who does not wait for it hangs up, on all
others that use the connection, too."""
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
        self._refused: ConnectError | None = None
        self._refusals = 0
        self._refused_at = 0.0

    def check_rest(self) -> None:
        """Raises the last refusal again while the host is to be left alone after it."""
        if self._refused is None:
            return
        left = self._refused_at + REST_S[min(self._refusals, len(REST_S)) - 1] - time.monotonic()
        if left > 0:
            detail = f"{self._refused.detail}; it is asked again in {left:.0f} s, so that it bans nobody"
            raise ConnectError(FailureKind.AUTH, detail)

    def let_in(self) -> None:
        self._refused, self._refusals = None, 0

    def explained(self, error: ConnectError) -> ConnectError:
        """A try that failed: counted if it was a refusal, with a likely cause if it is silence after some."""
        if error.kind is FailureKind.AUTH:
            self._refused, self._refused_at = error, time.monotonic()
            self._refusals += 1
        elif self._refusals and time.monotonic() - self._refused_at < BANNED_MAX_S:
            refused = f"after {counted(self._refusals, 'refused log-in')}"
            ban = "an intrusion blocker, such as sshguard, may have banned this address for some minutes"
            return ConnectError(error.kind, f"{error.detail}; {refused} {ban}")
        return error

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
            slot.check_rest()
            try:
                slot.transport = self._open(target, deadline, is_cancelled)
            except ConnectError as error:
                raise slot.explained(error) from None
            slot.let_in()
            return slot.transport

    def _open(
        self, target: HostTarget, deadline: float | None, is_cancelled: Callable[[], bool]
    ) -> paramiko.Transport:
        access = self._access
        return open_connection(
            target,
            self.load_key(),
            connect_timeout_s=access.connect_timeout_s,
            handshake_timeout_s=access.handshake_timeout_s,
            refused_for_s=BOOT_RETRY_S if access.boot_retry else 0.0,
            handshake_slots=self._handshakes,
            deadline=deadline,
            is_cancelled=is_cancelled,
            proxy=access.proxy,
        )

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
            timeout_s = max(CHANNEL_LEAST_S, limited(CHANNEL_TIMEOUT_S, deadline))
            channel = transport.open_session(window_size=window_bytes, timeout=timeout_s)
        except paramiko.ChannelException as error:
            raise ConnectError(
                FailureKind.CONNECT, f"{target.label} opens no further session: {error.text}"
            ) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            hang_up(transport)
            raise ConnectError(
                FailureKind.LOST, f"the connection to {target.label} was lost: {error}"
            ) from error
        if deadline is not None and time.monotonic() >= deadline:
            channel.close()
            raise ConnectError(FailureKind.TIMEOUT, f"{target.label} opened no session in time")
        return transport, channel

    def read_host_key(self, target: HostTarget, timeout_s: float) -> str | None:
        """The ssh-ed25519 key that the host shows, or None; on a connection of its own."""
        return read_host_key(target, timeout_s, self._access.proxy)

    def close_all_but(self, busy: Collection[HostTarget]) -> None:
        """Hangs up on all others; they are connected to again when somebody asks."""
        with self._lock:
            slots = [slot for target, slot in self._slots.items() if target not in busy]
        for slot in slots:
            with slot.lock:
                slot.close()

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
