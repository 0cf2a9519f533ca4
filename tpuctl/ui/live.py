"""Pages that stay fresh: each is rendered again while somebody has it open, and sent when it differs."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable

from anyio import sleep, to_thread

PAUSE_S = 1.0
"""Between two looks at one page: a preemption is to be seen within 5 s."""
SHARE = 0.2
"""A page whose rendering takes long is rendered seldom: so much of one processor, at the most."""
STEP_S = 0.25
"""How soon the end of the server is noticed."""
ALIVE_S = 15.0
"""After so long without news a comment is sent, by which a dead connection is found."""


async def changes(render: Callable[[], str], stopped: threading.Event) -> AsyncIterator[str | None]:
    """What `render` returns, at first and whenever it is another; None: nothing is new. Until `stopped`.

    Only `render` takes a thread, so that many open pages keep none from others.
    """
    known, silent = "", time.monotonic()
    while not stopped.is_set():
        begun = time.monotonic()
        text = await to_thread.run_sync(render)
        spent = time.monotonic() - begun
        if text != known:
            known, silent = text, time.monotonic()
            yield text
        elif time.monotonic() - silent > ALIVE_S:
            silent = time.monotonic()
            yield None
        due = time.monotonic() + max(PAUSE_S, spent / SHARE)
        while not stopped.is_set() and time.monotonic() < due:
            await sleep(min(STEP_S, PAUSE_S))


def as_event(text: str | None) -> str:
    """By the rules of server-sent events: an `update` with the text, or a comment."""
    if text is None:
        return ": nothing new\n\n"
    lines = "\n".join(f"data: {line}" for line in text.splitlines())
    return f"event: update\n{lines}\n\n"
