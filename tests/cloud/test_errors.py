"""What vendors say, without their wrapping."""

from __future__ import annotations

import pytest
import requests
from google.api_core import exceptions as api

from tpuctl.cloud.errors import translate
from tpuctl.errors import DeniedError, TransientError

REFUSED = (
    "HTTPConnectionPool(host='127.0.0.1', port=9): Max retries exceeded with url: /v2/x (Caused by "
    "NewConnectionError(\"HTTPConnection(host='127.0.0.1', port=9): Failed to establish a new connection: "
    '[Errno 111] Connection refused"))'
)
UNRESOLVED = (
    "HTTPSConnectionPool(host='tpu.googleapis.com', port=443): Max retries exceeded with url: /v2/x (Caused by "
    "NameResolutionError(\"HTTPSConnection(host='tpu.googleapis.com', port=443): Failed to resolve "
    "'tpu.googleapis.com' ([Errno -2] Name or service not known)\"))"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (REFUSED, "127.0.0.1:9 does not answer (connection refused)"),
        (UNRESOLVED, "tpu.googleapis.com:443 does not answer (name or service not known)"),
        (
            "HTTPSConnectionPool(host='a', port=443): Read timed out. (read timeout=20)",
            "a:443 does not answer (timed out)",
        ),
        ("something new", "something new"),
    ],
)
def test_a_server_that_does_not_answer_is_named_with_the_cause(text: str, said: str) -> None:
    error = translate(requests.ConnectionError(text), "list nodes in all zones")
    assert isinstance(error, TransientError)
    assert error.message == f"could not list nodes in all zones: {said}"
    assert "tpuctl config show" in str(error.hint)


def test_the_address_of_a_call_is_no_part_of_the_message() -> None:
    error = translate(
        api.Forbidden("GET https://tpu.googleapis.com/v2/x?%24alt=json: Permission denied"), "look"
    )
    assert isinstance(error, DeniedError)
    assert error.message == "could not look: Permission denied"
