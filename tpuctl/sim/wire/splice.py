"""Connections that are passed on, byte by byte."""

from __future__ import annotations

import asyncio

CHUNK = 1 << 20
"""Bytes, and the limit of streams, which would not hold more than 128 KiB else."""


async def splice(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    host: str,
    port: int,
    *,
    greeting: bytes = b"",
    request: bytes = b"",
) -> None:
    """Connects to `host`, says `greeting` here and `request` there, and passes bytes both ways until both
    sides are done."""
    try:
        there_reader, there_writer = await asyncio.open_connection(host, port, limit=CHUNK)
    except OSError:
        writer.close()
        return
    try:
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
