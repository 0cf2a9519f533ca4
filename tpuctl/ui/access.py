"""Who may see the page: the one who has the token that the terminal printed, from this machine. Pure.

Other users of the machine reach the port, and so does any website that a browser of this machine shows (by a
form, an image, or a name that is made to lead to 127.0.0.1). So a request must have a cookie that only the
one-time token gives, and name this server as its host and, where a browser says it, as its origin. Browsers
send cookies of 127.0.0.1 to each of its ports, so that another user's server might learn ours: the kernel says
whose the other end of a connection is.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

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
    user: int | None = None
    """Whose the other end is, by the kernel; None where it does not say."""


class Admission(Struct, frozen=True):
    """`status` 200: go on, or where it `enters`: to `/`, with the cookie. Any other ends it and is `said`."""

    status: int
    said: str = ""
    enters: bool = False


class Gate:
    """Lets in whoever has the token, once, and from then on whoever has the cookie that it gave.

    `port` is that of the server, `user` whose it is; `again` is the command that prints a new token.
    """

    def __init__(self, port: int, again: str, user: int) -> None:
        self.port = port
        self._users = frozenset({None, 0, user})
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.cookie = secrets.token_urlsafe(TOKEN_BYTES)
        self.cookie_name = f"tpuctl-{port}"  # cookies are of a host, whatever its port
        self._hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
        self._again = again
        self._used = False

    def judge(self, asked: PageRequest) -> Admission:
        """What a request gets. A token that opened the page is worth nothing from then on."""
        if asked.user not in self._users:
            return Admission(403, "this page is another user's")
        if asked.host not in self._hosts:
            return Admission(421, "this page is only served at 127.0.0.1")
        if asked.origin is not None and asked.origin not in {f"http://{host}" for host in self._hosts}:
            return Admission(403, "another site asked for this page")
        if asked.method not in READ_ONLY:
            return Admission(405, "this page shows, and changes nothing")
        if _equal(asked.cookie, self.cookie):
            return Admission(200, enters=asked.token is not None)
        fresh = asked.path == "/" and asked.method == "GET" and not self._used
        if fresh and _equal(asked.token, self.token):
            self._used = True
            return Admission(200, enters=True)
        return Admission(401, f"the address that the terminal printed opens this page, once: {self._again}")


def _equal(given: str | None, known: str) -> bool:
    return given is not None and secrets.compare_digest(given.encode("utf-8", "replace"), known.encode())


def find_user(port: int, server_port: int, tables: Iterable[str]) -> int | None:
    """Whose the end of a connection to `server_port` is that has the port `port`, by the texts of
    `/proc/net/tcp` and `tcp6` (proc_net_tcp(5)); None if that is unknown."""
    ends = (f"{_LOOPBACK}:{port:04X}", f"{_LOOPBACK}:{server_port:04X}")
    rows = (line.split() for table in tables for line in table.splitlines()[1:])
    return next((int(row[7]) for row in rows if row[1].endswith(ends[0]) and row[2].endswith(ends[1])), None)


_LOOPBACK = "0100007F"
"""127.0.0.1 as these tables have it, the last byte first; in `tcp6` behind what says that it is of IPv4."""
