"""Event loops in threads of their own, and connections that they pass on, byte by byte."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Streams = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CHUNK = 1 << 20
"""Bytes, and the limit of streams, which would not hold more than 128 KiB else."""


class LoopThread:
    """An event loop that runs until `close`; `begin` is called first of all in its thread."""

    def __init__(self, name: str, begin: Callable[[], None] = lambda: None) -> None:
        self.loop = asyncio.new_event_loop()
        self._begin = begin
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._begin()
        self.loop.run_forever()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` comes to in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def close(self) -> None:
        """Ends what still runs in it, and the thread."""
        self.call(self._cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _cancel_all(self) -> None:
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self.loop.shutdown_default_executor()


async def splice(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    host: str,
    port: int,
    *,
    greeting: bytes = b"",
    request: bytes = b"",
    on_open: Callable[[int], None] = lambda _port: None,
) -> None:
    """Connects to `host`, says `greeting` here and `request` there, and passes bytes both ways until both
    sides are done. `on_open` gets the port of this end of the connection before anything is passed on."""
    try:
        there_reader, there_writer = await asyncio.open_connection(host, port, limit=CHUNK)
    except OSError:
        writer.close()
        return
    try:
        on_open(there_writer.get_extra_info("sockname")[1])
        writer.write(greeting)
        there_writer.write(request)
        await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))
    finally:
        for each in (writer, there_writer):
            each.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while chunk := await source.read(CHUNK):
            target.write(chunk)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()
        else:
            target.close()  # TLS has no half-closed connections
    except OSError:
        target.close()  # one side went away
