"""Who may see the page: the one who has the token that the terminal printed, from this machine. Pure.

Other users of the machine reach the port, and so does any website that a browser of this machine shows (by a
form, an image, or a name that is made to lead to 127.0.0.1). So a request must have a cookie that only the
one-time token gives, and name this server as its host and, where a browser says it, as its origin.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from msgspec import Struct

TOKEN_BYTES = 32
READ_ONLY = ("GET", "HEAD")
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Of every answer: no script but ours, nothing from elsewhere, in no frame, and nothing is kept."""


class PageRequest(Struct, frozen=True):
    """What of a request decides. `token` is that of the address, `cookie` the value of ours; both may lack."""

    method: str
    path: str
    host: str
    origin: str | None = None
    token: str | None = None
    cookie: str | None = None


class Admission(Struct, frozen=True):
    """`status` 200: go on. 303: to `/`, with the cookie. Anything else ends it, with `said` for a person."""

    status: int
    said: str = ""


class Gate:
    """Lets in whoever has the token, once, and from then on whoever has the cookie that it gave.

    `port` is that of the server; `again` is the command that prints a new token.
    """

    def __init__(self, port: int, again: str) -> None:
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.cookie = secrets.token_urlsafe(TOKEN_BYTES)
        self.cookie_name = f"tpuctl-{port}"  # cookies are of a host, whatever its port
        self._hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
        self._again = again
        self._used = False

    def judge(self, asked: PageRequest) -> Admission:
        """What a request gets. A token that opened the page is worth nothing from then on."""
        if asked.host not in self._hosts:
            return Admission(421, "this page is only served at 127.0.0.1")
        if asked.origin is not None and asked.origin not in {f"http://{host}" for host in self._hosts}:
            return Admission(403, "another site asked for this page")
        if asked.method not in READ_ONLY:
            return Admission(405, "this page shows, and changes nothing")
        if asked.cookie is not None and secrets.compare_digest(asked.cookie, self.cookie):
            return Admission(200 if asked.token is None else 303)
        fresh = asked.path == "/" and asked.token is not None and not self._used
        if fresh and secrets.compare_digest(asked.token or "", self.token):
            self._used = True
            return Admission(303)
        return Admission(401, f"the address that the terminal printed opens this page, once: {self._again}")
