"""Commands and webhooks of hooks, run for real on this machine; and who may write the file that names them."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tpuctl.config.hooks import Hook, parse_hooks
from tpuctl.config.load import load_config, load_hooks
from tpuctl.errors import BadConfigError
from tpuctl.notify.send import MAX_OUTPUT, send_event

ID = "s1/slices/big/0000000000000187"
EVENT = {"id": ID, "event": "recovered", "name": "big", "text": "ü; $(touch /tmp/x)"}


def hook(**values: Any) -> Hook:
    return parse_hooks([{"name": "pager", "events": ["recovered"], **values}], "test")[0]


def send(made: Hook) -> tuple[str, list[str]]:
    log: list[str] = []
    return send_event(made, EVENT, log.append), log


def test_a_command_gets_the_event_on_stdin_and_in_variables_and_no_shell(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = 'cat >"$1"; echo "$TPUCTL_EVENT $TPUCTL_EVENT_ID $TPUCTL_SUBJECT $2"'
    trouble, log = send(hook(command=["/bin/sh", "-c", script, "sh", str(out), "$HOME; `id`"]))
    assert trouble == ""
    assert json.loads(out.read_text()) == EVENT
    assert log == [f"- hook pager: recovered {ID} big $HOME; `id`"]


@pytest.mark.parametrize(
    ("command", "trouble"),
    [
        (["/bin/sh", "-c", "exit 7"], "/bin/sh ended with 7"),
        (["/bin/sh", "-c", "kill -9 $$"], "/bin/sh ended with -9"),
        (["/no/such/program"], "/no/such/program: No such file or directory"),
    ],
)
def test_a_command_that_fails_is_trouble_in_words(command: list[str], trouble: str) -> None:
    assert send(hook(command=command))[0] == trouble


def eventually_dead(pid: int) -> bool:
    """Whether a process that was sent SIGKILL is gone, or a zombie; on a busy machine that takes time."""
    stat = Path(f"/proc/{pid}/stat")
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_a_command_that_hangs_dies_with_its_children_and_a_daemon_holds_nobody_up(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    trouble, _ = send(hook(command=["/bin/sh", "-c", f"sleep 600 & echo $! >{pid}; wait"], timeout_s=1))
    assert "took longer than 1 s" in trouble
    assert eventually_dead(int(pid.read_text()))
    trouble, _ = send(hook(command=["/bin/sh", "-c", f"sleep 600 & echo $! >{pid}"]))
    os.kill(int(pid.read_text()), 9)
    assert trouble == ""


def test_a_flood_of_output_is_cut() -> None:
    _, log = send(hook(command=["/bin/sh", "-c", "yes | head -c 1000000"]))
    assert sum(len(line.rpartition(" ")[2]) + 1 for line in log) == MAX_OUTPUT


class _Door(BaseHTTPRequestHandler):
    status = 200
    seen: list[Any]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.path, self.headers["Content-Type"], json.loads(body)))
        self.send_response(self.status)
        self.send_header("Location", "http://192.0.2.1/")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing on the test's stderr."""


@pytest.fixture
def door() -> Iterator[tuple[type[_Door], str]]:
    handler = type("Handler", (_Door,), {"seen": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}/hook"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_webhook_gets_the_event_as_json_also_from_an_address_in_a_file(door, tmp_path: Path) -> None:
    handler, url = door
    kept = tmp_path / "url"
    kept.write_text(f"{url}\n")
    assert send(hook(webhook=url))[0] == ""
    assert send(hook(webhook_file=str(kept)))[0] == ""
    assert handler.seen == [("/hook", "application/json", EVENT)] * 2


def test_an_answer_that_is_no_success_is_trouble_and_redirects_are_not_followed(door, tmp_path: Path) -> None:
    handler, url = door
    for status in (500, 307):
        handler.status = status
        assert send(hook(webhook=url))[0] == f"the answer was {status}"
    assert len(handler.seen) == 2
    assert "webhook_file cannot be used" in send(hook(webhook_file=str(tmp_path / "missing")))[0]
    kept = tmp_path / "url"
    kept.write_text("http://192.0.2.1/")
    assert "https" in send(hook(webhook_file=str(kept)))[0]


CONFIG = """
hooks:
  - {name: pager, events: [needs-human], command: [page]}
  - {name: lab, events: [preempted], command: [page], profiles: [lab]}
"""


def write_config(home: Path, text: str = CONFIG) -> Path:
    path = home / ".config/tpuctl/config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(0o600)
    path.parent.chmod(0o700)
    return path


def test_hooks_come_from_the_users_own_file_by_profile(tmp_path: Path) -> None:
    assert load_hooks({}, tmp_path, "default") == ()
    write_config(tmp_path)
    assert [made.name for made in load_hooks({}, tmp_path, "default")] == ["pager"]
    assert [made.name for made in load_hooks({}, tmp_path, "lab")] == ["pager", "lab"]


@pytest.mark.parametrize("place", ["config.yaml", "."])
def test_a_file_that_others_can_write_runs_nothing(tmp_path: Path, place: str) -> None:
    path = (write_config(tmp_path).parent / place).resolve()
    path.chmod(path.stat().st_mode | 0o020)
    with pytest.raises(BadConfigError, match="can be written by others") as caught:
        load_hooks({}, tmp_path, "default")
    assert caught.value.hint == f"chmod go-w {path}"


@pytest.mark.parametrize("text", ["hooks: []", "settings: {ping_url: 'https://example.com/'}"])
def test_a_project_file_names_no_program_and_no_address(tmp_path: Path, text: str) -> None:
    work = tmp_path / "cloned"
    work.mkdir()
    (work / "tpuctl.yaml").write_text(text)
    with pytest.raises(BadConfigError, match="your own") as caught:
        load_config({}, cwd=work, environ={"USER": "ada"}, home=tmp_path)
    assert "config.yaml" in caught.value.hint


@pytest.mark.parametrize(
    ("head", "trouble"), [(b"", "timed out"), (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "")]
)
def test_a_webhook_that_dribbles_holds_nobody_up(head: bytes, trouble: str) -> None:
    """A body is not read: the status says all."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def dribble() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(head)
                with suppress(OSError):
                    while not over.wait(0.02):  # a byte well within each read's timeout, for ever
                        connection.sendall(b"0")

        thread = threading.Thread(target=dribble, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        made = hook(webhook=f"http://127.0.0.1:{port}/", timeout_s=1)
        began = time.monotonic()
        assert send(made)[0] == trouble
        assert time.monotonic() - began < 20
        over.set()
        thread.join(20.0)


def test_trouble_is_told_without_the_address_which_may_be_a_secret() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}/s3cret", f"https://s3cret:{port}.invalid/s3cret"):
        trouble = send(hook(webhook=url, timeout_s=5))[0]
        assert trouble
        assert "s3cret" not in trouble


def test_a_login_of_netrc_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password hidden\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked: list[bytes] = []

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                asked.append(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert send(hook(webhook=f"http://127.0.0.1:{server.getsockname()[1]}/", timeout_s=5))[0] == ""
        thread.join(20.0)
    assert asked[0].startswith(b"POST / ")
    assert b"authorization" not in asked[0].lower()
