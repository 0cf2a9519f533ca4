"""`watch` typed against a real simulator; crontab(1) and systemctl(1) are stand-ins that keep files."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import stat
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.support.session import REAL_PACE, TPUCTL, Session, open_session
from tests.support.spool import Spool
from tpuctl.watch.install.preflight import cron_runs

FOREIGN = b"MAILTO=ada\n# by hand, with a byte \xfc that is no UTF-8\n0 3 * * *\tbackup  --all\n"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session(*REAL_PACE) as session:
        session.type("up", "v4-8", "small", "--spot", "--pay")
        yield session


@pytest.fixture
def spool(session: Session, tmp_path: Path) -> Iterator[Spool]:
    made, before = Spool(tmp_path / "spool"), session.environ["PATH"]
    session.environ["PATH"] = f"{made.bin}:{before}"
    yield made
    session.type("watch", "uninstall")
    session.environ["PATH"] = before


def folder(session: Session) -> Path:
    return session.root / "state" / "sim" / "sim-project" / "watch"


def test_a_pass_without_news_is_silent_and_leaves_a_heartbeat_and_a_log(session: Session) -> None:
    session.type("watch", "once")
    done = session.type("watch", "once")
    assert (done.stdout, done.stderr) == ("", "")
    [beat] = session.json("watch", "status")["watchdogs"]
    assert (beat["counts"], beat["acted"], beat["interval_s"]) == ({"done": 1}, 0, None)
    log = folder(session) / "watch.log"
    assert log.read_text().splitlines()[-1].endswith(" s)")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_a_pause_shows_in_the_status_and_is_no_stop(session: Session) -> None:
    session.type("pause", "--reason", "a talk")
    session.type("watch", "once")
    status = session.json("watch", "status")
    assert (status["health"], status["watchdogs"][0]["counts"]) == ("good", {"paused": 1})
    assert "a talk" in session.type("watch", "status").stderr
    session.type("resume")
    session.type("watch", "once")
    assert session.json("watch", "status")["paused"] == ""


def test_what_needs_a_person_is_told_once_and_stays_in_the_exit_status(session: Session) -> None:
    profile = session.root / "state" / "sim" / "profile.json"
    good = profile.read_text()
    token = session.root / "expired"
    token.write_text("expired")
    profile.write_text(json.dumps({**json.loads(good), "token_file": str(token)}))
    try:
        first, again = (session.type("watch", "once", status=None) for _ in range(2))
        assert first.returncode in (3, 4)
        assert "error: " in first.stderr
        assert (again.returncode, again.stdout, again.stderr) == (first.returncode, "", "")
        shown = session.type("watch", "status")
        assert "failed" in shown.stderr
        as_json = session.type("watch", "once", "--json", status=3)
        assert json.loads(as_json.stdout)["error"]["code"] == "partial"
    finally:
        profile.write_text(good)
    session.type("watch", "once")
    assert session.type("watch", "status").stderr == ""


def test_an_install_is_shown_first_and_the_second_one_changes_nothing(session: Session, spool: Spool) -> None:
    spool.table.write_bytes(FOREIGN)
    shown = session.type("watch", "install", "--dry-run").stdout
    assert session.type("watch", "install", status=2).stderr.count("--yes") == 1
    assert spool.table.read_bytes() == FOREIGN
    session.type("watch", "install", "--yes")
    after = spool.table.read_bytes()
    assert after.startswith(FOREIGN)
    [line] = after[len(FOREIGN) :].decode().splitlines()
    assert line in shown
    script = folder(session) / "pass.sh"
    assert script.read_text() in shown
    assert json.loads(session.type("watch", "install", "--json").stdout)["changed"] is False
    session.type("watch", "install", "--every", "5", "--yes")
    assert [row[:3] for row in spool.lines()[3:]] == ["*/5"]
    session.type("watch", "uninstall")
    assert spool.table.read_bytes() == FOREIGN
    assert not script.exists()
    assert "no watchdog is installed" in session.type("watch", "uninstall").stderr


def test_the_installed_line_does_a_pass_with_an_empty_environment(session: Session, spool: Spool) -> None:
    session.type("watch", "install", "--yes", "--every", "7")
    command = spool.lines()[0].split(" ", 5)[5].replace("\\%", "%")
    subprocess.run(["/bin/sh", "-c", command], env={}, cwd="/", check=True)
    status = session.json("watch", "status")
    assert status["health"] == "good"
    assert status["watchdogs"][0]["interval_s"] == 420.0
    session.type("watch", "uninstall")
    session.type("watch", "status", status=1)


def test_installs_at_the_same_time_do_not_lose_each_other(session: Session, spool: Spool) -> None:
    spool.table.write_bytes(FOREIGN)
    processes = [
        session.start("watch", "install", "--yes", "--every", "2"),
        session.start("watch", "install", "--yes", "--every", "2"),
    ]
    assert [session.finish(process).returncode for process in processes] == [0, 0]
    assert len(spool.lines()) == 4
    assert spool.table.read_bytes().startswith(FOREIGN)


def test_a_timer_of_systemd_replaces_the_line_and_goes_without_a_trace(session: Session, spool: Spool) -> None:
    session.type("watch", "install", "--yes")
    session.type("watch", "install", "--yes", "--systemd", "--every", "3")
    assert spool.lines() == []
    units = session.root / ".config" / "systemd" / "user"
    service = units / "tpuctl-watch-sim-sim-project.service"
    assert str(folder(session) / "pass.sh") in service.read_text()
    assert "OnUnitActiveSec=3min" in service.with_suffix(".timer").read_text()
    calls = spool.calls.read_text()
    session.type("watch", "install", "--yes", "--systemd", "--every", "3")
    assert "restart" not in spool.calls.read_text()[len(calls) :]
    session.type("watch", "uninstall")
    assert list(units.iterdir()) == []
    assert "disable --now tpuctl-watch-sim-sim-project.timer" in spool.calls.read_text()


def test_a_second_pass_at_the_same_time_leaves_it_to_the_first(session: Session) -> None:
    import fcntl

    folder(session).mkdir(parents=True, exist_ok=True)
    handle = os.open(folder(session) / "pass.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert session.json("watch", "once") == []
        assert "another pass" in session.type("watch", "once").stderr
    finally:
        os.close(handle)


def test_what_was_installed_is_shown_before_it_has_passed(session: Session, spool: Spool) -> None:
    session.type("watch", "once")
    session.type("watch", "install", "--yes", "--every", "7")
    told = session.type("watch", "status").stderr
    assert "crontab line */7 * * * *" in told
    runs = cron_runs()
    assert ("no cron daemon runs on this machine" in told) == (runs is False)
    assert ("next due in" in told) == (runs is not False)
    session.type("watch", "uninstall")
    session.type("watch", "once")
    assert "crontab line" not in session.type("watch", "status").stderr


def test_what_is_asked_about_is_shown_as_it_will_be_written(session: Session, spool: Spool) -> None:
    shown = session.type("watch", "install", "--dry-run").stdout
    ours, theirs = pty.openpty()
    try:
        asked = subprocess.run(
            [TPUCTL, "watch", "install"],
            cwd=session.work,
            env=session.environ,
            stdin=subprocess.DEVNULL,
            stderr=theirs,
            timeout=60,
        )
        os.close(theirs)
        told = b""
        with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
            while part := os.read(ours, 65536):
                told += part
    finally:
        os.close(ours)
    assert asked.returncode == 2
    assert shown in told.decode().replace("\r\n", "\n")
    assert max(map(len, shown.splitlines())) > 80


def test_who_leaves_a_slice_to_nobody_is_told(session: Session, spool: Spool) -> None:
    session.type("watch", "install", "--yes")
    session.type("watch", "uninstall")
    words = ("up", "v4-8", "small", "--spot", "--pay", "--no-wait")
    told = session.type(*words).stderr
    assert "hint: tpuctl watch install\n" in told
    assert "\x1b" not in told
    session.type("watch", "once", "--every", "1")
    assert "watch install" not in session.type(*words).stderr
    run = ("run", "--detach", "--no-checkpoint", "--on", "small", "--name")
    assert "watch install" not in session.type(*run, "watched", "--", "true").stderr
    session.type("attach", "watched")
    session.type("pause", "--reason", "a talk")
    told = session.type(*words).stderr
    assert "the fleet is paused by" in told
    assert "hint: tpuctl resume" in told
    session.type("resume")
    session.type("watch", "install", "--yes")
    session.type("watch", "uninstall")
    session.type("watch", "install", "--yes")
    told = session.type(*run, "watched-soon", "--", "true").stderr
    assert "run watched-soon: the watchdog is installed" in told
    assert "watch install" not in told
    session.type("attach", "watched-soon")
    session.type("watch", "uninstall")
    told = session.type(*run, "unwatched", "--", "true").stderr
    assert "run unwatched will not be restored after a preemption: no watchdog has made a pass yet" in told
    session.type("attach", "unwatched")


class _Pinged(BaseHTTPRequestHandler):
    status = 200
    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.send_response(self.status)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing on the test's stderr."""


@pytest.fixture
def pinged() -> Iterator[tuple[type[_Pinged], str]]:
    handler = type("Handler", (_Pinged,), {"seen": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_good_pass_calls_the_alarm_and_a_bad_answer_fails_nothing(session: Session, pinged) -> None:
    handler, url = pinged
    session.type("watch", "once", "--ping", f"{url}/alive?token=s3cret")
    assert handler.seen == ["/alive?token=s3cret"]
    for status in (500, 302):
        handler.status = status
        session.type("watch", "once", "--ping", f"{url}/alive?token=s3cret")
        log = (folder(session) / "watch.log").read_text()
        assert f"ping: the answer was {status}" in log
    assert len(handler.seen) == 3
    assert "s3cret" not in log
    assert "ping: the answer was 302" in session.type("watch", "status").stderr
    session.type("watch", "once", "--ping", "http://example.com/x", status=2)


def test_an_installed_alarm_is_called_and_not_in_the_arguments(session: Session, spool: Spool, pinged) -> None:
    handler, url = pinged
    session.type("watch", "install", "--yes", "--ping", f"{url}/beat")
    script = folder(session) / "pass.sh"
    assert stat.S_IMODE(script.stat().st_mode) == 0o600
    assert f"{url}/beat" not in script.read_text().splitlines()[-1]
    assert f"{url}/beat" not in spool.table.read_text()
    subprocess.run(["/bin/sh", str(script)], env={}, check=True)
    assert handler.seen == ["/beat"]


def write_user_config(session: Session, text: str) -> Path:
    path = session.root / ".config" / "tpuctl" / "config.yaml"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_hook_hears_of_a_preemption_and_of_the_recovery(session: Session) -> None:
    heard = session.root / "heard"
    command = ["/bin/sh", "-c", f"cat >>{heard}; echo >>{heard}; echo told $TPUCTL_EVENT"]
    hook = {"name": "diary", "events": ["preempted", "recovered"], "command": command}
    config = write_user_config(session, json.dumps({"hooks": [hook]}))
    try:
        session.type("watch", "once")
        session.type("watch", "hooks", "--test", "diary")
        assert json.loads(heard.read_text())["event"] == "test"
        heard.unlink()
        session.type("watch", "hooks", "--test", "dairy", status=5)
        node = session.json("status", "small")["node"]
        session.type("sim", "preempt", node)

        def back() -> bool:
            facts = session.json("status", "small")
            return facts["state"] == "ready" and facts["node"] != node

        session.watch_until(back)
        events = [json.loads(line) for line in heard.read_text().splitlines()]
        assert [(event["event"], event["name"]) for event in events] == [
            ("preempted", "small"),
            ("recovered", "small"),
        ]
        assert "/slices/small/" in events[0]["id"]
        assert len({event["id"] for event in events}) == 2
        assert "hook diary: told recovered" in (folder(session) / "watch.log").read_text()
        assert [row["name"] for row in session.json("watch", "hooks")] == ["diary"]
        # A mistake in the hooks does not keep the watchdog from its work, and is said.
        config.write_text("hooks: [{command: x}]")
        assert "hooks is blocked" in session.type("watch", "once", status=3).stderr
        assert "hooks: " in session.type("watch", "status").stderr
        session.type("watch", "hooks", status=2)
    finally:
        config.unlink()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("install", "--on", "ada@vm", "--yes"), "the simulator answers on this machine only"),
        (("uninstall", "--on", "ada@vm"), "the simulator answers on this machine only"),
        (("--project", "my-project", "install", "--on", "ada@vm"), "--project goes before the command"),
        (("install", "--on", "-oProxyCommand=id", "--yes"), "not a machine to log in to"),
        (("install", "--on", "ada@vm", "--systemd"), "exclude each other"),
        (("install", "--every", "0"), "--every"),
        (("install", "--every", "61"), "--every"),
        (("install", "--ping", "http://example.com/x"), "https://"),
    ],
)
def test_what_cannot_be_installed_is_refused_before_anything_is_written(
    session: Session, spool: Spool, words: tuple[str, ...], message: str
) -> None:
    done = session.type("watch", *words, status=2)
    assert message in done.stderr
    assert "hint: " in done.stderr
    assert not spool.table.exists()


def test_a_local_store_cannot_be_watched_from_elsewhere(session: Session, spool: Spool) -> None:
    real = ("--profile", "default", "--project", "my-project")
    done = session.type(*real, "watch", "install", "--on", "ada@vm", "--yes", status=2)
    assert "tpuctl config init --store gs://" in done.stderr
