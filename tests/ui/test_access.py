"""Who may see the page: only the browser that had the token, from this machine, by the right name."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tpuctl.ui.access import Admission, Gate, PageRequest, find_user

PORT, ME = 8700, 1000
ORDINARY = PageRequest("GET", "/", f"127.0.0.1:{PORT}")


@pytest.fixture
def gate() -> Gate:
    return Gate(PORT, "tpuctl ui", ME)


def test_the_token_opens_the_page_once_and_the_cookie_from_then_on(gate):
    with_token = replace(ORDINARY, token=gate.token)
    assert gate.judge(replace(with_token, method="HEAD")).status == 401, (
        "who only looks at a link spends nothing"
    )
    assert gate.judge(with_token) == Admission(200, enters=True)
    again = gate.judge(with_token)
    assert again.status == 401
    assert "tpuctl ui" in again.said
    assert gate.judge(replace(ORDINARY, cookie=gate.cookie)) == Admission(200)
    assert gate.judge(replace(with_token, cookie=gate.cookie)).enters, "the address loses the token"


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 401),
        ({"token": "guessed"}, 401),
        ({"token": ""}, 401),
        ({"cookie": "guessed"}, 401),
        ({"cookie": ""}, 401),
        ({"cookie": "é"}, 401),
        ({"token": "\ud800"}, 401),
        ({"user": ME + 1}, 403),
        ({"user": ME}, 401),
        ({"user": 0}, 401),
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
    if status != 401:
        known = replace(ORDINARY, **{"cookie": gate.cookie, **changes})
        assert gate.judge(known).status == status, "a cookie does not help"


def test_a_token_only_counts_at_the_beginning(gate):
    assert gate.judge(replace(ORDINARY, path="/runs", token=gate.token)).status == 401
    assert gate.judge(replace(ORDINARY, token=gate.token)).enters


def test_no_two_servers_share_a_secret_or_a_cookie():
    one, other = Gate(PORT, "", ME), Gate(PORT + 1, "", ME)
    assert len({one.token, one.cookie, other.token, other.cookie}) == 4
    assert one.cookie_name != other.cookie_name


TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:21FC 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0
   1: 0100007F:C001 0100007F:21FC 01 00000000:00000000 00:00000000 00000000  1001        0 2 1 0 20 4 30 10 -1
   2: 0100007F:21FC 0100007F:C001 01 00000000:00000000 00:00000000 00000000  1000        0 3 1 0 20 4 30 10 -1
   3: 0100007F:C001 0100007F:0050 01 00000000:00000000 00:00000000 00000000  1002        0 4 1 0 20 4 30 10 -1
"""
SIX = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue tr uid
   0: 0000000000000000FFFF00000100007F:C002 0000000000000000FFFF00000100007F:21FC 01 0:0 00:0 0  1003  0 5
"""


@pytest.mark.parametrize(("port", "user"), [(0xC001, 1001), (0xC002, 1003), (0xC003, None)])
def test_the_kernel_says_whose_a_connection_is(port, user):
    assert find_user(port, PORT, [TABLE, SIX]) == user
    assert find_user(port, PORT, []) is None
