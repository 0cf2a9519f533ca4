"""What the agent's verb `news` answers: the logs of an attempt behind what is known of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from tpuctl.hosts.protocol import NO_ANSWER, MalformedReplyError
from tpuctl.lib.codec import parse_json
from tpuctl.model.processes import LOG_STREAMS


class LogNews(Struct, frozen=True):
    """What the logs of an attempt have behind what is known, and whether there is more to ask for.

    `processes` is of those that several processes have of their own, by stream. `times` is of their indexes;
    `skipped` bytes before what came are no longer on the host."""

    stdout: bytes = b""
    stderr: bytes = b""
    more: bool = False
    times: Mapping[str, bytes] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    processes: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def output(self) -> Mapping[str, bytes]:
        return {"stdout": self.stdout, "stderr": self.stderr, **self.processes}


def parse_log_news(stdout: bytes) -> LogNews:
    """The part that came, where the answer broke off; a login script may print before it. MalformedReplyError
    where nothing came."""
    head = stdout.find(b'{"news": ')
    begin = stdout.find(b"\n", head) + 1
    if head < 0 or not begin:
        raise MalformedReplyError("the host answered no logs")
    line = stdout[head : begin - 1]
    try:
        announced = parse_json(line)
        news = announced["news"]
        counts = {stream: _count(news[stream]) for stream in dict.fromkeys((*LOG_STREAMS, *news))}
        timed = {stream: _count(count) for stream, count in (announced.get("times") or {}).items()}
        skipped = {stream: _count(count) for stream, count in (announced.get("skipped") or {}).items()}
        size, packed = sum(counts.values()) + sum(timed.values()), bool(announced.get("packed"))
    except NO_ANSWER as error:
        raise MalformedReplyError(f"the host announced its logs as {line[:80]!r}") from error
    split = _unpack if packed else _cut
    parts = split(memoryview(stdout)[begin:], [*counts.values(), *timed.values()])
    more = bool(announced.get("more")) or sum(map(len, parts)) < size
    times = dict(zip(timed, parts[len(counts) :], strict=True))
    own = dict(zip([*counts][2:], parts[2 : len(counts)], strict=True))
    return LogNews(parts[0], parts[1], more, times, skipped, own)


def _cut(data: memoryview, counts: Iterable[int]) -> list[bytes]:
    """At most that many bytes of each part, as far as they came."""
    parts = []
    for count in counts:
        parts.append(bytes(data[:count]))
        data = data[count:]
    return parts


def _unpack(packed: memoryview | bytes, counts: Iterable[int]) -> list[bytes]:
    """`_cut` of a deflate stream, each part straight to where it stays."""
    stream, parts = zlib.decompressobj(-zlib.MAX_WBITS), []
    try:
        for count in counts:
            parts.append(stream.decompress(packed, count) if count else b"")
            packed = stream.unconsumed_tail if count else packed
    except zlib.error as error:
        raise MalformedReplyError(f"the host's logs cannot be unpacked: {error}") from error
    return parts


def _count(value: Any) -> int:
    """ValueError for less than none."""
    count = int(value)
    if count < 0:
        raise ValueError(f"{count} is no count")
    return count
