"""The session of every JSON call to Google."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from google.auth.transport.requests import AuthorizedSession


class ApiSession(AuthorizedSession):
    """One whose proxies and certificates are those that the environment named when it first spoke to a server.
    To look through all variables for every request took a third of its CPU."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]
        self._by_server: dict[Any, dict[str, Any]] = {}

    def merge_environment_settings(self, url: Any, proxies: Any, *arguments: Any) -> dict[str, Any]:
        """As the session of `requests`. `arguments` are `stream`, `verify` and `cert`."""
        if proxies:
            return super().merge_environment_settings(url, proxies, *arguments)
        parts = urlsplit(url)
        key = parts.scheme, parts.netloc, *arguments
        found = self._by_server.get(key)
        if found is None:
            found = self._by_server[key] = super().merge_environment_settings(url, proxies, *arguments)
        return {**found, "proxies": dict(found["proxies"])}
