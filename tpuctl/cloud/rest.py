"""Google's JSON APIs for which no client library is loaded: Compute Engine, quotas, service usage.

One object speaks to one endpoint. Reads are retried for passing trouble and paged; calls that change something
are sent once. What changes Compute Engine goes through `compute_clients.py`, whose import costs over a second.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from google.auth.credentials import Credentials

from tpuctl.cloud import wire
from tpuctl.cloud.errors import translate
from tpuctl.cloud.retry import read
from tpuctl.cloud.session import ApiSession
from tpuctl.errors import NotFoundError, TpuctlError, TransientError
from tpuctl.lib.codec import parse_json
from tpuctl.model.cloud import Listing

if TYPE_CHECKING:
    from google.api_core import exceptions as api

CALL_TIMEOUT_S = 20.0
AT_ONCE = 8
"""Calls at the same time: a slice of 64 hosts needs one for each host, and an API limits requests a minute."""
EVERYWHERE = {"returnPartialSuccess": "true", "includeAllScopes": "true"}
"""Asks a list over all locations of Compute Engine for what it can read, rather than for nothing, when one of
them is down."""
_QUIET_WARNINGS = frozenset({"NO_RESULTS_ON_PAGE"})

Data = Mapping[str, Any]
T = TypeVar("T")
Translate = Callable[[Exception, str], TpuctlError]


class RestClient:
    """JSON calls to one API; `endpoint` is its root, such as `https://compute.googleapis.com`.

    Paths start with a slash and are sent as they are: quote what comes from outside. `what` says in errors,
    which are subclasses of TpuctlError, what was being done.
    """

    def __init__(self, endpoint: str, credentials: Credentials) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._credentials = credentials
        self._spare: SimpleQueue[RestClient] = SimpleQueue()
        self._session: Any = ApiSession(credentials)

    def read(self, what: str, call: Callable[[], T]) -> T:
        """The answer of a call that changes nothing, asked again after passing trouble."""
        return read(what, call)

    def get(
        self, path: str, what: str, params: Data | None = None, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> Data:
        """One answer."""
        return self.read(what, lambda: self._call("GET", path, params=params, timeout_s=timeout_s))

    def find(self, path: str, what: str, parse: Callable[[wire.Json], T]) -> T | None:
        """One answer, or None where the API says NOT_FOUND."""
        try:
            return parse(self.get(path, what))
        except NotFoundError:
            return None

    def find_each(self, paths: Iterable[str], what: str) -> list[Data | None]:
        """The answer to each path, in their order, several at once; None where the API says NOT_FOUND."""
        return self.together([partial(RestClient.find, path=path, what=what, parse=dict) for path in paths])

    def together(self, calls: Sequence[Callable[[RestClient], T]]) -> list[T]:
        """What each call gave, in their order, a few at a time: each has a session of its own, as these are not
        thread-safe. Raises what the first of them raised."""
        if len(calls) < 2:
            return [call(self) for call in calls]
        with ThreadPoolExecutor(min(AT_ONCE, len(calls))) as pool:
            return list(pool.map(self._by_spare, calls))

    def _by_spare(self, call: Callable[[RestClient], T]) -> T:
        """The call by a client that nobody else uses now; its connection is kept for the next."""
        try:
            client = self._spare.get_nowait()
        except Empty:
            client = RestClient(self._endpoint, self._credentials)
        try:
            return call(client)
        finally:
            self._spare.put(client)

    def pages(
        self, path: str, what: str, params: Data | None = None, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> Iterator[Data]:
        """Every page of a list, following `nextPageToken`. A page may come without any items."""
        asked = dict(params or {})
        while True:
            page = self.get(path, what, asked, timeout_s=timeout_s)
            yield page
            token = page.get("nextPageToken")
            if not token:
                return
            if token == asked.get("pageToken"):
                raise TransientError(f"could not {what}: the list does not end (page {token} again)")
            asked["pageToken"] = token

    def listing(
        self,
        path: str,
        collection: str,
        what: str,
        parse: Callable[[wire.Json], T],
        params: Data | None = None,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Listing[T]:
        """Everything in a list, and the locations that the answers say were not read: each API has its own way
        to name them, and a list over all locations of Compute Engine also warns in the part of a location."""
        items: list[T] = []
        unread: set[str] = set()
        for page in self.pages(path, what, params, timeout_s=timeout_s):
            for each in (*wire.texts(page.get("unreachable")), *wire.texts(page.get("unreachables"))):
                unread.add(last_part(each))
            found = page.get(collection, page.get("items"))
            for scope, part in wire.message(found).items():
                code = wire.message(wire.message(part).get("warning")).get("code")
                if code and code not in _QUIET_WARNINGS:
                    unread.add(last_part(scope))
            parts = (wire.message(part).get(collection) for part in wire.message(found).values())
            for part in parts if isinstance(found, Mapping) else (found,):
                items.extend(parse(each) for each in wire.messages(part))
        return Listing(tuple(items), frozenset(unread))

    def change(
        self, method: str, path: str, what: str, body: Data | None = None, *, translate: Translate = translate
    ) -> Data:
        """A call that changes something; sent once, so after TransientError it may or may not have happened."""
        try:
            return self._call(method, path, body=body)
        except Exception as error:  # every vendor and transport error becomes ours
            raise translate(error, what) from error

    def _call(
        self,
        method: str,
        path: str,
        *,
        params: Data | None = None,
        body: Data | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Data:
        answer = self._session.request(
            method, f"{self._endpoint}{path}", params=params, json=body, timeout=timeout_s
        )
        if answer.status_code >= 400:
            raise refusal(answer)
        data = _parse(answer)
        if not isinstance(data, dict):
            raise api_error(500, "the answer is not a JSON object", response=answer)
        return data


def request_id(key: str) -> str:
    """A `requestId` of Compute Engine: the same for the same request, whoever repeats it."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"tpuctl:{key}"))


def last_part(path: str) -> str:
    """The name at the end of a resource's path or address."""
    return path.rsplit("/", 1)[-1]


def _parse(answer: Any) -> Any:
    """The JSON of an answer; an empty body is an empty object, anything else that is no JSON is None."""
    try:
        return parse_json(answer.content) if answer.content else {}
    except ValueError:
        return None


def api_error(status: int, message: str, **about: Any) -> api.GoogleAPICallError:
    """The library's exception for a status."""
    from google.api_core import exceptions as api

    found: api.GoogleAPICallError = api.from_http_status(  # type: ignore[no-untyped-call]
        status, message, **about
    )
    return found


def refusal(answer: Any) -> api.GoogleAPICallError:
    """The library's exception for an answer, with Google's own message and details where the body has them."""
    data = _parse(answer)
    found = wire.message(wire.message(data).get("error"))
    return api_error(
        answer.status_code,
        str(found.get("message") or answer.reason or "no reason given"),
        errors=wire.messages(found.get("errors")),
        details=wire.messages(found.get("details")),
        response=answer,
    )
