"""One command on one worker while it runs, and how its output reaches the caller."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tpuctl.engine.ports import OutputSink, RemoteCall
from tpuctl.model.hosts import FailureKind, HostTarget, RemoteResult
from tpuctl.ssh.session import Ending

if TYPE_CHECKING:
    import paramiko

Emit = Callable[[str, bytes], bool]
"""Takes a stream's name and a chunk; false: not now."""
Chunks = queue.Queue[tuple[int, str, bytes]]

QUEUE_CHUNKS = 16
"""Chunks of at most 128 KiB between the workers' threads and a slow sink; when full, hosts are not read. More
only takes memory: the sink is one thread, and each host has a window and a chunk of its own besides."""
FULL_WAIT_S = 0.1
ALL_WINDOWS = 4 << 20
MIN_WINDOW = 64 << 10
MAX_WINDOW = 2 << 20
"""Bytes that a worker may send before they were passed on: paramiko's default for a few, less for each of many,
so that all together stay near ALL_WINDOWS: at 100 ms to the hosts that is 40 MB/s, and of memory each byte
counts twice, because a worker's thread takes as much off its window before it waits for the sink."""
COLLECTED_MAX = 64 << 20
"""Of what is kept as a whole. The longest answers, parts of logs and lists of contents, have a tenth of it."""


class CollectedOutput:
    """The whole output of a call, for commands that print little. Output beyond COLLECTED_MAX bytes is not
    read, so that its command runs into its time limit."""

    def __init__(self) -> None:
        self._size = 0
        self._streams: dict[str, list[bytes]] = {"stdout": [], "stderr": []}

    def emit(self, name: str, data: bytes) -> bool:
        if self._size + len(data) > COLLECTED_MAX:
            time.sleep(FULL_WAIT_S)
            return False
        self._size += len(data)
        self._streams[name].append(data)
        return True

    def drop(self) -> None:
        """Forgets what a first try said."""
        self._size, self._streams = 0, {"stdout": [], "stderr": []}

    def said_on(self, stream: str) -> bytes:
        """All that has come on a stream."""
        return b"".join(self._streams[stream])

    def added_to(self, result: RemoteResult) -> RemoteResult:
        """`result` with the output, which is given away: of 32 logs each copy counts."""
        said, self._streams = self._streams, {"stdout": [], "stderr": []}
        return replace(result, stdout=b"".join(said["stdout"]), stderr=b"".join(said["stderr"]))


class WorkerCall:
    """One command on one worker, run in its own thread, and how it ended."""

    def __init__(self, target: HostTarget, asked: RemoteCall, changed: threading.Event) -> None:
        self.target = target
        self.asked = asked
        self.output = CollectedOutput()
        self.changed = changed
        self.began = time.monotonic()
        self.deadline = None if asked.timeout_s is None else self.began + asked.timeout_s
        self.emit: Emit = self.output.emit
        self.result: RemoteResult | None = None
        self.bug: BaseException | None = None
        self.window_bytes = MAX_WINDOW
        self.thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self._channel: paramiko.Channel | None = None
        self._lock = threading.Lock()

    @property
    def command(self) -> str:
        command = self.asked.command
        return command if isinstance(command, str) else command(self.target)

    @property
    def stdin(self) -> bytes | Iterable[bytes | None]:
        """The stdin of the command, from its start."""
        given = self.asked.stdin
        return given if isinstance(given, bytes) else given(self.target)

    @property
    def done(self) -> bool:
        return self.result is not None or self.bug is not None

    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def share_window(self, calls: int) -> None:
        """One of `calls` at once: see ALL_WINDOWS."""
        self.window_bytes = max(MIN_WINDOW, min(MAX_WINDOW, ALL_WINDOWS // calls))

    def adopt(self, channel: paramiko.Channel | None) -> None:
        """What ends with the call, or nothing any more: then others may have the channel."""
        with self._lock:
            self._channel = channel

    def end_input(self) -> None:
        """Tells a session on the host, which lives as long as its input, to end; what it still says is read."""
        with self._lock:
            channel = self._channel
        if channel is not None:
            with contextlib.suppress(OSError, EOFError):  # it has ended
                channel.shutdown_write()

    def cancel(self) -> None:
        """Ends the call soon; closing the channel wakes its thread and ends the session on the host."""
        self._cancelled.set()
        with self._lock:
            if self._channel is not None:
                self._channel.close()

    def finish(self, ending: Ending) -> RemoteResult:
        """The result without its output, which went to `emit`."""
        return RemoteResult(
            worker=self.target.worker,
            exit_status=ending.exit_status,
            stdout=b"",
            stderr=b"",
            duration_s=time.monotonic() - self.began,
            failure=ending.failure,
            detail=ending.detail,
        )

    def outcome(self) -> RemoteResult:
        """The result; a call that was given up before it had one was stopped. Raises what its thread raised."""
        if self.bug is not None:
            raise self.bug
        if self.result is None:
            return self.finish(Ending(failure=FailureKind.LOST, detail="stopped by this side"))
        return self.result


class LastWords:
    """Passes output on, and keeps the end of stderr."""

    def __init__(self, emit: Emit, size: int) -> None:
        self._emit = emit
        self._size = size
        self.text = b""

    def __call__(self, name: str, data: bytes) -> bool:
        if not self._emit(name, data):
            return False
        if name == "stderr":
            self.text = (self.text + data)[-self._size :]
        return True


def queued(chunks: Chunks, call: WorkerCall) -> Emit:
    """Output into a queue that another thread empties with `pump`."""

    def emit(name: str, data: bytes) -> bool:
        if call.is_cancelled():
            return True  # nobody wants it any more
        try:
            chunks.put((call.target.worker, name, data), timeout=FULL_WAIT_S)
        except queue.Full:
            return False
        call.changed.set()
        return True

    return emit


def pump(chunks: Chunks, sink: OutputSink) -> None:
    """Passes on what is waiting."""
    with contextlib.suppress(queue.Empty):
        for _ in range(QUEUE_CHUNKS):
            sink(*chunks.get_nowait())
