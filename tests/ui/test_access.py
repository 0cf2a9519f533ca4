"""Who may see the page: only the browser that had the token, from this machine, by the right name."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tpuctl.ui.access import Gate, PageRequest

PORT = 8700
ORDINARY = PageRequest("GET", "/", f"127.0.0.1:{PORT}")


@pytest.fixture
def gate() -> Gate:
    return Gate(PORT, "tpuctl ui")


def test_the_token_opens_the_page_once_and_the_cookie_from_then_on(gate):
    with_token = replace(ORDINARY, token=gate.token)
    assert gate.judge(with_token).status == 303
    again = gate.judge(with_token)
    assert again.status == 401
    assert "tpuctl ui" in again.said
    assert gate.judge(replace(ORDINARY, cookie=gate.cookie)).status == 200
    assert gate.judge(replace(with_token, cookie=gate.cookie)).status == 303, "the address loses the token"


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 401),
        ({"token": "guessed"}, 401),
        ({"token": ""}, 401),
        ({"cookie": "guessed"}, 401),
        ({"cookie": ""}, 401),
        ({"path": "/runs"}, 401),
        ({"host": "evil.example"}, 421),
        ({"host": f"evil.example:{PORT}"}, 421),
        ({"host": "127.0.0.1"}, 421),
        ({"host": f"127.0.0.1:{PORT + 1}"}, 421),
        ({"host": ""}, 421),
        ({"host": f"127.0.0.1:{PORT}, evil.example"}, 421),
        ({"host": f"localhost:{PORT}"}, 401),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": f"https://127.0.0.1:{PORT}"}, 403),
        ({"origin": f"http://127.0.0.1:{PORT}"}, 401),
        ({"method": "POST"}, 405),
        ({"method": "DELETE"}, 405),
    ],
)
def test_who_has_neither_or_comes_another_way_is_refused(gate, changes, status):
    asked = replace(ORDINARY, **changes)
    assert gate.judge(asked).status == status
    if status not in (401, 303):
        known = replace(ORDINARY, **{"cookie": gate.cookie, **changes})
        assert gate.judge(known).status == status, "a cookie does not help"


def test_a_token_only_counts_at_the_beginning(gate):
    assert gate.judge(replace(ORDINARY, path="/runs", token=gate.token)).status == 401
    assert gate.judge(replace(ORDINARY, token=gate.token)).status == 303


def test_no_two_servers_share_a_secret_or_a_cookie():
    one, other = Gate(PORT, ""), Gate(PORT + 1, "")
    assert len({one.token, one.cookie, other.token, other.cookie}) == 4
    assert one.cookie_name != other.cookie_name
