"""`tpuctl forward` as typed: a real HTTP server behind it, ports that are taken, and workers that are dead."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.support.session import Session, open_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Hello(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from the host")

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def served() -> Iterator[int]:
    """The port of a server on the hosts, which share this machine's loopback."""
    server = HTTPServer(("127.0.0.1", 0), Hello)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        session.type("up", "v4-16", "big", "--spot", "--pay")
        yield session


def first_line(client: subprocess.Popen[str]) -> str:
    assert client.stdout is not None
    return client.stdout.readline().removeprefix("[sim] ").strip()


def test_a_server_on_a_chosen_worker_answers_until_ctrl_c(session: Session, served: int) -> None:
    client = session.start("forward", "big", f"0:{served}", "--worker", "1")
    try:
        url = first_line(client)
        assert urllib.request.urlopen(url, timeout=30).read() == b"from the host"
        client.send_signal(signal.SIGINT)
        _, stderr = client.communicate(timeout=60)
    finally:
        client.kill()
        client.communicate()
    assert client.returncode == 130
    assert f"leads to port {served} of big-1" in stderr


def test_a_local_port_that_is_taken_is_a_conflict_with_a_way_out(session: Session, served: int) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        done = session.type("forward", "big", f"{port}:{served}", status=6)
    assert f"port {port} of this machine cannot be used" in done.stderr
    assert "LOCAL:REMOTE" in done.stderr


def test_bad_ports_and_workers_are_refused(session: Session) -> None:
    for words in (("big", "web"), ("big", "1:2:3"), ("big", "0"), ("big", "80", "--worker", "9")):
        session.type("forward", *words, status=2)


def test_a_dead_worker_is_told_before_a_port_is_opened(session: Session) -> None:
    session.type("sim", "preempt", "big-1")
    done = session.type("forward", "big", "6006", status=9)
    assert "big-0 does not answer" in done.stderr
    assert "tpuctl up big" in done.stderr
    assert done.stdout == ""
