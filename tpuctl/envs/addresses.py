"""Reading from package indexes and mirrors with one TLS context, as a lock names hundreds of wheels.

urllib makes a context for each connection otherwise, and each of them reads the certificates of all authorities
again, which takes 20 ms of a processor.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from urllib.request import OpenerDirector, Request


def open_address(address: str | Request, timeout_s: float) -> Any:
    """As `urllib.request.urlopen`, whose errors it raises."""
    return _opener().open(address, timeout=timeout_s)


@cache
def _opener() -> OpenerDirector:
    import ssl  # these take as long to import as all else that most commands about environments need
    from urllib.request import HTTPSHandler, build_opener

    return build_opener(HTTPSHandler(context=ssl.create_default_context()))
