"""`tpuctl ui` in a real browser, and by requests that no browser sends."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.browser import Page, find_violations, open_browser
from tests.support.session import TPUCTL, Session, open_session

pytestmark = pytest.mark.slow
SEEN_WITHIN_S = 5.0
LINES = 2_200_000
"""Of a log of 200 MB."""
AS_ANOTHER = """\
import sys, urllib.error, urllib.request
request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}/", headers={"Cookie": sys.argv[2]})
try:
    print(urllib.request.urlopen(request).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


class Site:
    """A page that is served, with the cookie of the browser that opened it."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process, self.address = process, address
        self.base, _, self.token = address.partition("/?token=")
        self.port = int(self.base.rpartition(":")[2])
        self.cookie = ""

    def ask(self, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
        """As whoever has no more than the port; `Cookie=site.cookie` is a friend."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, headers={"Host": f"127.0.0.1:{self.port}", **headers})
        answer = connection.getresponse()
        answer.text = answer.read().decode()  # type: ignore[attr-defined]
        return answer


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session("--instant") as session:
        session.type("up", "v4-16", "big", "--spot", "--pay")
        (session.work / "train.py").write_text(
            "for i in range(200): print('step', i, 'loss', 1 / (i + 1), flush=True)\n"
        )
        progress = ("--progress", r"step (?P<step>\d+) loss (?P<loss>[\d.e-]+)")
        session.type("run", "--on", "big", "--no-checkpoint", "--name", "first", *progress, "train.py")
        words = ("run", "--on", "big", "--no-checkpoint", "--name", "second", "--tag", f"x={HOSTILE[:30]}")
        session.type(*words, "--", "sh", "-c", 'printf "%s\\n" "$0"; exit 3', HOSTILE, status=1)
        yield session


@pytest.fixture(scope="module")
def site(session: Session) -> Iterator[Site]:
    process = session.start("ui", "--no-open")
    assert process.stdout is not None
    site = Site(process, process.stdout.readline().strip())
    yield site
    process.send_signal(signal.SIGINT)
    done = session.finish(process, 30)
    assert done.returncode == 130
    assert "the page is closed; slices and runs are as they were" in done.stderr


@pytest.fixture(scope="module")
def page(site: Site) -> Iterator[Page]:
    with open_browser() as page:
        page.visit(site.address, becomes=f"{site.base}/", width=1280, dark=False)
        while page.evaluate("document.title") != "Fleet · tpuctl":
            time.sleep(0.05)
        cookies = page.call("Network.getCookies", urls=[site.base])["cookies"]
        assert [(each["httpOnly"], each["sameSite"]) for each in cookies] == [(True, "Strict")]
        site.cookie = f"{cookies[0]['name']}={cookies[0]['value']}"
        yield page


PAGES = ("/", "/slices/big", "/runs", "/runs/first", "/runs/second", "/runs/first/log", "/money")
PAGES += ("/compare?run=first&run=second",)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_whole_on_every_screen_and_asks_nobody_else(site, page, path):
    for width, dark in ((400, False), (1280, True), (2560, False)):
        page.visit(site.base + path, width=width, dark=dark)
        assert page.problems == []
        assert all(each.startswith(site.base) for each in page.requests)
        assert page.evaluate("document.title").endswith("· tpuctl")
        assert page.evaluate("document.querySelectorAll('h1').length") == 1
        across = page.evaluate("document.documentElement.scrollWidth")
        assert across <= width, f"{path} is {across} pixels wide on a screen of {width}"


@pytest.mark.long
def test_every_page_is_accessible(site, page):
    for path in (*PAGES, "/runs/second/log", "/runs/missing"):
        for width, dark in ((400, True), (1280, False)):
            page.visit(site.base + path, width=width, dark=dark)
            assert find_violations(page) == [], (path, width)


def test_the_fleet_can_be_walked_by_keyboard(site, page):
    page.visit(f"{site.base}/", width=1280, dark=False)
    walked = []
    for _ in range(6):
        for kind in ("keyDown", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        walked.append(page.evaluate("document.activeElement.ariaLabel || document.activeElement.textContent"))
    table = "Slices and other TPUs"
    assert walked == ["Skip to the content", "Fleet", "Runs", "Money and capacity", table, "big"]


def test_a_preemption_is_seen_on_an_open_page_and_what_is_typed_then(session, site, page):
    page.visit(f"{site.base}/", width=1280, dark=False)
    assert page.evaluate("document.querySelector('.remarks')") is None
    session.type("sim", "preempt", "big-1")
    begun = time.monotonic()
    while not page.evaluate("!!document.querySelector('.remarks')"):
        assert time.monotonic() - begun < 4 * SEEN_WITHIN_S, "an open page does not see a preemption"
        time.sleep(0.05)
    assert "tpuctl up big" in page.evaluate("document.querySelector('.remarks').innerText")
    session.type("up", "big", "--pay")


def test_html_in_logs_names_and_commands_is_text(site, page):
    for path in ("/runs", "/runs/second", "/runs/second/log", "/compare?run=first&run=second"):
        page.visit(site.base + path, width=1280, dark=False)
        assert "taken" not in page.evaluate("document.title")
        assert page.evaluate("document.querySelectorAll('img[src=x]').length") == 0
    deadline = time.monotonic() + 30
    page.visit(f"{site.base}/runs/second/log", width=1280, dark=False)
    while HOSTILE[:8] not in page.evaluate("document.getElementById('log-lines').textContent"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_log_is_chosen_by_attempt_and_worker(site, page):
    page.visit(f"{site.base}/runs/second/log", width=1280, dark=False)
    shown = "[...document.getElementById('log-of').options].map((each) => each.value).sort().join()"

    def choose(field: str, value: str) -> str:
        event = "each.dispatchEvent(new Event('change', { bubbles: true }))"
        find = f"document.querySelector('[data-field={field}]')"
        page.evaluate(f"{{ const each = {find}; each.value = '{value}'; {event}; }}")
        return str(page.evaluate(shown))

    assert page.evaluate(shown) == "1/0/stdout,1/1/stdout,2/0/stdout,2/1/stdout"
    assert choose("attempt", "1") == "1/0/stdout,1/1/stdout"
    assert choose("worker", "1") == "1/1/stdout"
    assert choose("attempt", "") == "1/1/stdout,2/1/stdout"
    assert page.evaluate("document.querySelector('[data-field=stream]')") is None, "there is no choice"
    assert page.problems == []


def test_filters_find_runs_and_a_damaged_query_is_an_ordinary_page(site, page):
    def shown(query: str) -> list[str]:
        text = site.ask(f"/runs?{query}", Cookie=site.cookie).text
        return re.findall(r'<th scope="row" data-title="Run"><a href="/runs/([^"]+)"', text)

    assert shown("") == ["second", "first"]
    assert shown("state=failed") == ["second"]
    assert shown("text=TRAIN") == ["first"]
    assert shown("tag=x") == ["second"]
    assert shown("owner=nobody") == []
    assert shown("page=999999999") == shown("page=-1") == shown("page=x") == ["second", "first"]
    assert site.ask("/compare?run=first", Cookie=site.cookie).status == 400
    assert site.ask("/runs/missing", Cookie=site.cookie).status == 404
    assert "tpuctl" in site.ask("/slices/missing", Cookie=site.cookie).text


def test_only_the_browser_with_the_cookie_sees_anything(site, page):
    for path in (
        "/",
        "/runs",
        "/ui.css",
        "/ui.js",
        "/live/",
        "/runs/first/log/part?log=1/0/stdout&offset=0&limit=9",
    ):
        refused = site.ask(path)
        assert refused.status == 401, path
        assert "first" not in refused.text
    assert site.ask(f"/?token={site.token}").status == 401, "the token was used"
    assert site.ask("/", Cookie=site.cookie).status == 200
    assert site.ask("/", Cookie=site.cookie, Host="evil.example").status == 421
    assert site.ask("/", Cookie=site.cookie, Origin="https://evil.example").status == 403
    assert site.ask("/", "POST", Cookie=site.cookie).status == 405
    answer = site.ask("/", Cookie=site.cookie)
    assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] == "no-store"
    own = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert {row[1] for row in own if row[3] == "0A" and row[1].endswith(f":{site.port:04X}")} == {
        f"0100007F:{site.port:04X}"
    }


def test_a_link_from_elsewhere_opens_the_page(session, tmp_path):
    """As the browser gets it that tpuctl opens: from a file, so that the first request is another site's."""
    process = session.start("ui", "--no-open")
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    base = address.partition("/?")[0]
    (tmp_path / "open.html").write_text(f'<meta http-equiv="refresh" content="0; url={address}">')
    try:
        with open_browser() as page:
            page.visit((tmp_path / "open.html").as_uri(), becomes=f"{base}/", width=1280, dark=False)
            assert page.evaluate("document.title") == "Fleet · tpuctl"
    finally:
        process.send_signal(signal.SIGINT)
        session.finish(process, 30)


def test_another_user_of_the_machine_gets_nothing_even_with_the_cookie(site, page):
    if os.getuid() != 0:
        pytest.skip("needs root")
    words = ["setpriv", "--reuid=65534", "--clear-groups", "/usr/bin/python3", "-c", AS_ANOTHER]
    done = subprocess.run([*words, str(site.port), site.cookie], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["403"], done.stderr


def test_no_path_leads_out_of_the_logs(session, site, page):
    logs = session.root / "state" / "sim" / "sim-project" / "runs"
    (logs / "first" / "1" / "worker-7.stdout.log").symlink_to("/etc/passwd")
    (logs / "linked").symlink_to("/etc")
    part = "offset=0&limit=100"
    for run, log in (
        ("first", "1/7/stdout"),
        ("first", "../../x/1/0/stdout"),
        ("first", "1/0/../../../../../../etc/passwd"),
        ("first", "1/0/stdout%00"),
        ("linked", "1/0/stdout"),
        ("..%2F..%2F..%2Fetc", "1/0/stdout"),
    ):
        answer = site.ask(f"/runs/{run}/log/part?log={log}&{part}", Cookie=site.cookie)
        assert answer.status in (400, 404), (run, log)
        assert "root:" not in answer.text
    own = logs / "second" / "1" / "worker-0.stdout.log"
    kept = own.read_bytes()
    own.unlink()
    own.symlink_to("/etc/passwd")
    for path in (f"/runs/second/log/part?log=1/0/stdout&{part}", "/runs/second", "/runs/second/log"):
        assert "root:" not in site.ask(path, Cookie=site.cookie).text
    own.unlink()
    own.write_bytes(kept)
    assert site.ask("/../../etc/passwd", Cookie=site.cookie).status == 404
    assert site.ask("/runs/first/log/part?log=1/0/stdout&offset=-1&limit=9", Cookie=site.cookie).status == 400


def test_a_log_of_200_mb_is_scrolled_and_searched_by_pieces(session, site, page):
    folder = session.root / "state" / "sim" / "sim-project" / "runs" / "first" / "1"
    kept = folder / "worker-0.stdout.log"
    before = kept.read_bytes()
    line = "line {:09d} " + "x" * 75 + "\n"
    try:
        with kept.open("w") as file:
            for begin in range(0, LINES, 100_000):
                file.write("".join(line.format(each) for each in range(begin, begin + 100_000)))
            file.write("the needle\n")
        page.visit(f"{site.base}/runs/first/log", width=1280, dark=True)

        def until(script: str) -> None:
            deadline = time.monotonic() + 60
            while not page.evaluate(script):
                assert time.monotonic() < deadline, page.evaluate("document.getElementById('log').innerText")[
                    :500
                ]
                time.sleep(0.05)

        lines = "document.getElementById('log-lines').textContent"
        until(f"{lines}.includes('the needle')")
        assert page.evaluate(f"{lines}.length") < 300_000
        page.evaluate("document.getElementById('log').scrollTop = 0")
        until(f"{lines}.startsWith('line 000000000')")
        page.evaluate("{ const box = document.getElementById('log'); box.scrollTop = box.scrollHeight / 2; }")
        until(f"/^line 00(10|11)/.test({lines})")
        page.evaluate("document.getElementById('log-text').value = 'NEEDLE'")
        page.evaluate("document.getElementById('log-form').requestSubmit()")
        until("document.getElementById('log-said').textContent.startsWith('found at')")
        said = "document.getElementById('log-said').textContent"
        page.evaluate("document.getElementById('log-text').value = 'e 00100000'")
        for wanted in (
            f"{said}.startsWith('not')",
            *(f"{lines}.startsWith('line 00100000{n}')" for n in "012"),
        ):
            page.evaluate("document.getElementById('log-form').requestSubmit()")
            until(wanted)
        assert page.problems == []
    finally:
        kept.write_bytes(before)


def test_a_port_that_is_taken_and_a_store_that_cannot_be_read_are_one_line(session):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = session.type("ui", "--no-open", "--port", str(port), status=2)
        assert f"port {port} is in use" in refused.stderr
    file = session.root / "state" / "sim" / "sim-project" / "store.sqlite"
    kept = file.read_bytes()
    try:
        file.write_bytes(b"no database" * 100)
        refused = session.type("ui", "--no-open", status=None)
        assert refused.returncode not in (0, 130)
        assert "store.sqlite" in refused.stderr
        assert refused.stdout == ""
    finally:
        file.write_bytes(kept)


def test_a_store_of_a_newer_tpuctl_is_one_line(session):
    file = session.root / "state" / "sim" / "sim-project" / "store.sqlite"
    with closing(sqlite3.connect(file)) as db:
        (own,) = db.execute("PRAGMA user_version").fetchone()
        db.execute(f"PRAGMA user_version = {own + 1}")
        try:
            for words in (("ui", "--no-open"), ("ui", "--publish", "gs://sim-bucket/newer")):
                refused = session.type(*words, status=2)
                assert len([line for line in refused.stderr.splitlines() if line.startswith("error:")]) == 1
                assert "newer tpuctl" in refused.stderr.replace("\n", " ")
                assert refused.stdout == ""
        finally:
            db.execute(f"PRAGMA user_version = {own}")


def test_where_no_browser_is_found_the_address_is_said_and_the_page_is_served(session, tmp_path):
    words = [TPUCTL, "ui"]
    kept = {name: word for name, word in session.environ.items() if name not in {"BROWSER", "DISPLAY"}}
    environ = {**kept, "PATH": str(tmp_path)}
    process = subprocess.Popen(
        words, env=environ, cwd=session.work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    site = Site(process, process.stdout.readline().strip())
    said = iter(process.stderr.readline, "")
    assert any("no browser was found here: open the address in one" in line for line in said)
    assert site.ask(f"/?token={site.token}").status == 200
    process.send_signal(signal.SIGINT)
    session.finish(process, 30)
    assert process.returncode == 130


def test_without_its_packages_it_says_what_installs_them(session, tmp_path):
    (tmp_path / "starlette.py").write_text("raise ImportError('not installed', name='starlette')")
    environ = {**session.environ, "PYTHONPATH": str(tmp_path)}
    words = [TPUCTL, "ui", "--no-open"]
    done = subprocess.run(words, env=environ, cwd=session.work, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "packages that are not installed: starlette" in done.stderr
    assert "pip install 'tpuctl[ui]'" in done.stderr


def test_updates_come_as_events(site, page):
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    connection.request("GET", "/live/runs", headers={"Host": f"127.0.0.1:{site.port}", "Cookie": site.cookie})
    answer = connection.getresponse()
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.readline() == b"retry: 2000\n"
    connection.close()
    assert json.loads(
        site.ask("/runs/first/log/find?log=1/0/stdout&text=step%20150&offset=0", Cookie=site.cookie).text
    )["at"]
