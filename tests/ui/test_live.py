"""What an open page is sent."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator

import anyio

from tpuctl.ui.live import as_event, changes


def heard(events: AsyncIterator[str | None]) -> list[str | None]:
    async def collect() -> list[str | None]:
        return [each async for each in events]

    return anyio.run(collect)


def test_only_what_differs_is_sent(monkeypatch):
    monkeypatch.setattr("tpuctl.ui.live.PAUSE_S", 0.0)
    stopped = threading.Event()
    said = iter(["a", "a", "b", "b", "a"])

    def render() -> str:
        text = next(said, None)
        if text is None:
            stopped.set()
        return text or "a"

    assert heard(changes(render, stopped)) == ["a", "b", "a"]


def test_a_reader_that_hears_nothing_is_told_so_now_and_then(monkeypatch):
    monkeypatch.setattr("tpuctl.ui.live.PAUSE_S", 0.0)
    monkeypatch.setattr("tpuctl.ui.live.ALIVE_S", 0.0)
    stopped = threading.Event()
    left = iter(range(3))

    def render() -> str:
        if next(left, None) is None:
            stopped.set()
        return "same"

    assert heard(changes(render, stopped)) == ["same", None, None, None]


def test_an_event_keeps_its_lines():
    assert as_event("<p>\na: b\n\n</p>") == "event: update\ndata: <p>\ndata: a: b\ndata: \ndata: </p>\n\n"
    assert as_event(None).startswith(":")
