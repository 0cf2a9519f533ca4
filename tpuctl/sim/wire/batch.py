"""Batches: several calls of one API in one multipart request, each answered for itself.

See https://cloud.google.com/compute/docs/api/how-tos/batch; gcloud sends one for a command with several names.
"""

from __future__ import annotations

import email.message
import email.parser
import email.policy
from collections.abc import Callable
from http.client import responses
from urllib.parse import parse_qs, urlsplit

from tpuctl.sim.wire.messages import Request, Response
from tpuctl.sim.wire.status import invalid_argument

MAX_CALLS = 1000
_BOUNDARY = "batch_tpuctl_sim"


def handle_batch(request: Request, handle: Callable[[Request], Response]) -> Response:
    """Answers every call of the batch by `handle`, which must not raise ApiError. Raises INVALID_ARGUMENT."""
    parts = []
    for part in _parts(request):
        answer = handle(_inner(part, request))
        reply = [
            f"--{_BOUNDARY}",
            "Content-Type: application/http",
            f"Content-ID: <response-{str(part.get('content-id', '')).strip('<>')}>",
            "",
            f"HTTP/1.1 {answer.status} {responses.get(answer.status, 'Error')}",
            *(f"{name}: {value}" for name, value in answer.headers.items()),
            f"Content-Length: {len(answer.body)}",
            "",
        ]
        parts.append("\r\n".join(reply).encode() + b"\r\n" + answer.body + b"\r\n")
    body = b"".join(parts) + f"--{_BOUNDARY}--\r\n".encode()
    return Response(200, body, {"content-type": f"multipart/mixed; boundary={_BOUNDARY}"})


def _parts(request: Request) -> list[email.message.Message]:
    kind = request.headers.get("content-type", "")
    whole = b"Content-Type: " + kind.encode("latin-1", "replace") + b"\r\n\r\n" + request.body
    message = email.parser.BytesParser(policy=email.policy.compat32).parsebytes(whole)
    parts = message.get_payload() if message.is_multipart() else []
    if not parts or len(parts) > MAX_CALLS:
        raise invalid_argument(f"Failed to parse batch request, error: a batch has 1 to {MAX_CALLS} parts.")
    return [part for part in parts if isinstance(part, email.message.Message)]


def _inner(part: email.message.Message, outer: Request) -> Request:
    """The call in a part: a request line, headers, an empty line and a body."""
    payload = part.get_payload(decode=True)
    head, _, body = (payload if isinstance(payload, bytes) else b"").replace(b"\r\n", b"\n").partition(b"\n\n")
    lines = head.decode("latin-1").lstrip().split("\n")
    verb, _, rest = lines[0].partition(" ")
    try:
        url = urlsplit(rest.rsplit(" ", 1)[0] if " " in rest else rest)
    except ValueError as error:
        raise invalid_argument(f"Failed to parse batch request, error: {error}") from error
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    query = parse_qs(url.query, keep_blank_values=True)
    all_headers = {**outer.headers, **headers}
    return Request(verb, url.path, query, all_headers, body.strip(b"\n"), caller=outer.caller)
