"""google-cloud-compute's typed clients, for calls that change something in Compute Engine.

Importing that library takes over a second of CPU, so this module is imported by the change itself; reads stay
with `rest.py`. Calls are sent once, and their operations are followed by whoever needs their end: what the
library waits with asks compute.googleapis.com, whatever the endpoint.
"""

from __future__ import annotations

from typing import Any

from google.api_core.exceptions import GoogleAPICallError
from google.auth.credentials import Credentials
from google.auth.exceptions import MutualTLSChannelError
from google.protobuf.json_format import MessageToDict, ParseError

from tpuctl.cloud import wire
from tpuctl.cloud.errors import translate
from tpuctl.cloud.lean_compute import compute_v1
from tpuctl.cloud.rest import CALL_TIMEOUT_S, Translate, api_error, refusal
from tpuctl.errors import BadConfigError


class ComputeClients:
    """The typed clients of one endpoint, made when they are needed. `v1` has their classes and requests."""

    v1 = compute_v1

    def __init__(self, endpoint: str, credentials: Credentials) -> None:
        self._options = {"credentials": credentials, "client_options": {"api_endpoint": endpoint.rstrip("/")}}
        self._clients: dict[type, Any] = {}

    def client(self, service: type) -> Any:
        """The client of a service, such as `v1.DisksClient`."""
        if service not in self._clients:
            made: Any = self._made(service)
            made.transport._session.hooks["response"].append(_refuse)
            self._clients[service] = made
        return self._clients[service]

    def _made(self, service: Any) -> Any:
        """Raises BadConfigError for a variable that the library does not understand."""
        try:
            return service(transport="rest", **self._options)
        except (MutualTLSChannelError, ValueError) as error:
            why = f"Google's client of {service.__name__.removesuffix('Client')} refuses its settings: {error}"
            hint = "unset GOOGLE_API_USE_MTLS_ENDPOINT GOOGLE_CLOUD_UNIVERSE_DOMAIN"
            raise BadConfigError(why, hint=hint) from error

    def change(
        self, service: type, method: str, request: Any, what: str, *, translate: Translate = translate
    ) -> wire.Json:
        """The operation that a request began, as JSON; `what` says in errors what was being done.

        Raises what `RestClient.change` raises for the same answer.
        """
        send = getattr(service, method)
        try:
            said = send(self.client(service), request, retry=None, timeout=CALL_TIMEOUT_S)
            operation: wire.Json = MessageToDict(type(said).pb(said))
            return operation
        except Exception as error:  # every vendor and transport error becomes ours
            raise translate(_as_rest(error), what) from error


def _refuse(answer: Any, *_: Any, **__: Any) -> None:
    """Raises for a refusal before the library reads it, which fails on an error that is no object and forgets
    the status then. A 401 is left to the session, which asks for a new token first."""
    if answer.status_code >= 400 and answer.status_code != 401:
        raise refusal(answer)


def _as_rest(error: Exception) -> Exception:
    """What `RestClient` makes of the same answer."""
    if isinstance(error, ParseError | UnicodeDecodeError):
        return api_error(500, "the answer is not a JSON object")
    if isinstance(error, GoogleAPICallError) and error.response is not None:
        return refusal(error.response)
    return error
