"""Addresses of the user's own that tpuctl calls."""

from __future__ import annotations

from urllib.parse import urlsplit

from tpuctl.errors import UsageError


def check_ping_url(url: str) -> str:
    """Returns `url`; raises UsageError unless it is https, or http on this machine. It may hold a token."""
    parts = urlsplit(url)
    loopback = parts.hostname in {"localhost", "127.0.0.1", "::1"}
    if parts.hostname is None or not (parts.scheme == "https" or (parts.scheme == "http" and loopback)):
        raise UsageError("the URL to ping must start with https://", hint="ping_url: https://hc-ping.com/UUID")
    if any(not 33 <= ord(character) < 127 for character in url):
        raise UsageError("the URL to ping holds characters that no URL has", hint="percent-encode them")
    return url
