"""The dead-man alarm: one GET after a good pass. It never raises; what went wrong is said in words."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import Any

from tpuctl.core.timeouts import PING_TIMEOUT_S


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """What was checked is what is called: a redirect could lead to a plain http address."""

    def redirect_request(self, *_: Any) -> None:
        return None


def call_url(request: urllib.request.Request, timeout_s: float) -> str:
    """Sends one request and returns trouble in words, without the URL, which may be a secret; empty for a
    success. The proxies of the environment are used."""
    try:
        opener = urllib.request.build_opener(_NoRedirects)
        with opener.open(request, timeout=timeout_s) as answer:
            answer.read1(1000)
    except urllib.error.HTTPError as error:
        return f"the answer was {error.code}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"{type(error).__name__}: {getattr(error, 'reason', None) or error}"
    return ""


def ping(url: str) -> str:
    """Calls `url`, which `check_ping_url` accepted; trouble in words, or an empty string."""
    request = urllib.request.Request(url, headers={"User-Agent": "tpuctl"})  # noqa: S310 - the scheme was checked
    trouble = call_url(request, PING_TIMEOUT_S)
    return f"ping: {trouble}" if trouble else ""
