"""The end of a command never overtakes its output."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tpuctl.model.hosts import FailureKind
from tpuctl.ssh.calls import COLLECTED_MAX, CollectedOutput
from tpuctl.ssh.paramiko_tuning import ask_for_life, new_transport
from tpuctl.ssh.session import Feed, exchange


class LateChannel:
    """A channel whose last output and end arrive together at the very moment somebody asks for the end."""

    def __init__(self) -> None:
        self._readable, self._writable = os.pipe()
        self._data = b""
        self._arrived = False
        self.closed = False
        self.status_event = threading.Event()

    @property
    def eof_received(self) -> bool:
        if not self._arrived:
            self._arrived = True
            self._data = b"last words\n"
            self.status_event.set()
            return True
        return True

    def fileno(self) -> int:
        return self._readable

    def recv_ready(self) -> bool:
        return bool(self._data)

    def recv(self, size: int) -> bytes:
        data, self._data = self._data[:size], self._data[size:]
        return data

    def recv_stderr_ready(self) -> bool:
        return False

    def recv_stderr(self, size: int) -> bytes:
        raise AssertionError(f"nothing was said there, and {size} bytes were asked for")

    def exit_status_ready(self) -> bool:
        return True

    def recv_exit_status(self) -> int:
        return 0

    def exec_command(self, command: str) -> None: ...

    def setblocking(self, value: int) -> None: ...

    def shutdown_write(self) -> None: ...

    def free(self) -> None:
        os.close(self._readable)
        os.close(self._writable)


@pytest.fixture
def channel() -> Iterator[LateChannel]:
    found = LateChannel()
    yield found
    found.free()


def test_output_that_arrives_together_with_the_end_is_not_lost(channel):
    said: list[bytes] = []

    def emit(_name: str, data: bytes) -> bool:
        said.append(data)
        return True

    never_used: Any = None
    ending = exchange(
        channel, never_used, "true", Feed(b"", hold=False), emit, None, 15.0, is_cancelled=lambda: False
    )
    assert ending.exit_status == 0
    assert b"".join(said) == b"last words\n"


class BrokenChannel(LateChannel):
    """A channel whose connection breaks while something is sent: paramiko's Packetizer raises EOFError then."""

    def send(self, data: bytes) -> int:
        raise EOFError(f"{len(data)} bytes were not sent")


def test_a_connection_that_breaks_while_something_is_sent_is_the_end_of_the_command_alone():
    broken = BrokenChannel()
    assert Feed(b"input", hold=True).push(broken)  # type: ignore[arg-type]
    broken.free()


class UnlinkedChannel(LateChannel):
    """One that paramiko's thread took from its connection, which has ended."""

    closed = True
    eof_received = False

    def __init__(self) -> None:
        self._readable, self._writable = os.pipe()
        self._data = b""
        self.status_event = threading.Event()
        self.status_event.set()

    def exit_status_ready(self) -> bool:
        return False


class EndingTransport(threading.Thread):
    """paramiko's thread between that and the moment in which it says that the connection is lost."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.asked = threading.Event()

    def run(self) -> None:
        self.asked.wait(60)

    def is_active(self) -> bool:
        active = self.is_alive()
        self.asked.set()
        return active


def test_a_command_whose_connection_was_lost_is_not_said_to_be_killed_by_a_signal():
    channel, transport = UnlinkedChannel(), EndingTransport()
    transport.start()
    ending = exchange(
        channel, transport, "true", Feed(b"", hold=False), lambda *_: True, None, 15.0, lambda: False
    )
    assert ending.failure is FailureKind.LOST
    channel.free()


def test_output_that_is_kept_as_a_whole_is_bounded() -> None:
    collected = CollectedOutput()
    assert collected.emit("stdout", bytes(COLLECTED_MAX - 1))
    assert collected.emit("stderr", b"y")
    assert not collected.emit("stdout", b"z")


def test_a_sign_of_life_is_asked_for_without_waiting_for_a_side_that_takes_nothing():
    ours, theirs = socket.socketpair()
    transport = new_transport(ours)
    transport.active = True
    transport.clear_to_send.set()  # as after a handshake
    ask_for_life(transport)
    assert theirs.recv(100)
    ours.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            ours.send(bytes(4096))
    ours.setblocking(True)
    asking = threading.Thread(target=ask_for_life, args=(transport,), daemon=True)
    asking.start()
    asking.join(60)
    assert not asking.is_alive()
    theirs.close()
    ask_for_life(transport)
    ours.close()
    ask_for_life(transport)
