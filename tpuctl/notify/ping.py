"""Dead man's switch and webhooks: one request with a deadline. It never raises; trouble is said in words."""

from __future__ import annotations

import queue
import threading

import requests

from tpuctl.model.timeouts import PING_TIMEOUT_S


def ping(url: str) -> str:
    """Calls `url`, which `check_ping_url` accepted; trouble in words, or an empty string."""
    trouble = call_url(url, PING_TIMEOUT_S)
    return f"ping: {trouble}" if trouble else ""


def call_url(url: str, timeout_s: float, body: bytes | None = None) -> str:
    """Gets `url`, or posts JSON to it, and returns trouble in words, empty for a success. The words are without
    the URL, which may be a secret. The proxies of the environment are used.

    It takes no longer than `timeout_s` as a whole. A timeout of requests bounds each read, and a server that
    sends a byte now and then outlasts it: its thread is left behind.
    """
    found: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=lambda: found.put(_call(url, timeout_s, body)), daemon=True).start()
    try:
        return found.get(timeout=timeout_s)
    except queue.Empty:
        return "timed out"


def _call(url: str, timeout_s: float, body: bytes | None) -> str:
    headers = {"User-Agent": "tpuctl"} | ({} if body is None else {"Content-Type": "application/json"})
    try:
        # What was checked is what is called: a redirect could lead to a plain http address.
        answer = requests.request(
            "GET" if body is None else "POST",
            url,
            data=body,
            headers=headers,
            timeout=timeout_s,
            allow_redirects=False,
            stream=True,
            auth=lambda request: request,  # not that of ~/.netrc
        )
    except requests.Timeout:
        return "timed out"
    except (requests.RequestException, ValueError) as error:
        return _root_of(error)
    answer.close()
    return "" if 200 <= answer.status_code < 300 else f"the answer was {answer.status_code}"


def _root_of(error: BaseException) -> str:
    """What lies below the layers of requests, whose words have the URL."""
    while (below := error.__cause__ or error.__context__) is not None:
        error = below
    return f"{type(error).__name__}: {error}" if isinstance(error, OSError) else type(error).__name__
