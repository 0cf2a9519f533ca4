"""A pod: it gets its bundle over a network that is not always there, and tells no values of secrets."""

from __future__ import annotations

import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

POD = Path(__file__).parents[2] / "templates" / "pod.py"
MASKS = Path(__file__).parents[2] / "tpuctl" / "agent" / "secret_forms.py"
SECRET = "s3cr3t of the lab"
HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"
WHOLE = HEAD + b"Content-Length: 5\r\n\r\nwhole"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """What a server says, byte for byte, one connection after the other."""
    found: list[bytes] = []

    def serve(server: socket.socket) -> None:
        while True:
            try:
                connection = server.accept()[0]
            except OSError:
                return
            with connection:
                connection.recv(1 << 16)
                connection.sendall(found.pop(0))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
        monkeypatch.setattr("time.sleep", lambda _: None)
        yield found
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.parametrize("broken", [HEAD + b"Content-Length: 5\r\n\r\nwh", b"no status line\r\n\r\n", b""])
def test_an_answer_that_broke_off_is_asked_for_again(
    answers: list[bytes], tmp_path: Path, broken: bytes
) -> None:
    answers += [broken, WHOLE]
    pod = runpy.run_path(str(POD))
    pod["fetch"]("gs://bucket/run.tar", str(tmp_path / "got"))
    assert ((tmp_path / "got").read_bytes(), answers) == (b"whole", [])


def test_what_never_comes_whole_is_tried_by_another_pod(answers: list[bytes], tmp_path: Path) -> None:
    answers += [HEAD + b"Content-Length: 5\r\n\r\nwh"] * 5
    pod = runpy.run_path(str(POD))
    with pytest.raises(pod["Failed"], match="only 2 of 5 bytes came") as caught:
        pod["fetch"]("gs://bucket/run.tar", str(tmp_path / "got"))
    assert getattr(caught.value, "status", None) == 1


def started(home: Path, *command: str, value: str = SECRET) -> subprocess.Popen[str]:
    """A worker whose variable TOKEN is a secret."""
    (home / "code").mkdir()
    (home / "secret_forms.py").write_bytes(MASKS.read_bytes())
    words = ["start", str(home), "1", "1", "1", "0", ".", "TOKEN", "--", *command]
    told = {"TPUCTL_SLICE_ID": "0", "TPUCTL_LEADER": "a", "JOB_COMPLETION_INDEX": "0", "TPUCTL_RESTARTS": "0"}
    return subprocess.Popen(
        [sys.executable, str(POD), *words],
        env={**os.environ, **told, "TOKEN": value},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_values_of_secrets_are_masked_in_both_streams_whatever_the_pieces(tmp_path: Path) -> None:
    script = 'printf "a s3c"; sleep 0.5; printf "r3t of the lab\\n"; echo "$TOKEN!" >&2; printf s3cr3; exit 7'
    out, err = (program := started(tmp_path, "sh", "-c", script)).communicate(timeout=60)
    mask = "*" * len(SECRET)
    assert (out, err, program.returncode) == (f"a {mask}\ns3cr3", f"{mask}!\n", 7)


@pytest.mark.parametrize(
    ("script", "value", "said"),
    [
        ("trap 'echo saved $TOKEN; exit 3' TERM; echo on; sleep 30 & wait", SECRET, "saved " + "*" * 17 + "\n"),
        ("trap 'echo saved; exit 3' TERM; echo on; sleep 30 & wait", "short", "saved\n"),
    ],
    ids=["masked", "nothing to mask"],
)
def test_a_signal_reaches_the_program_and_what_it_leaves_behind_holds_up_nothing(
    tmp_path: Path, script: str, value: str, said: str
) -> None:
    program = started(tmp_path, "sh", "-c", script, value=value)
    assert program.stdout is not None
    assert program.stdout.readline() == "on\n"
    program.send_signal(signal.SIGTERM)
    assert program.wait(timeout=25) == 3
    assert program.stdout.readline() == said


def test_a_program_that_a_signal_ends_has_the_status_that_its_container_would_have(tmp_path: Path) -> None:
    program = started(tmp_path, "sh", "-c", "kill -KILL $$")
    program.communicate(timeout=60)
    assert program.returncode == 128 + signal.SIGKILL


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    program = started(tmp_path, "no-such-program")
    _, err = program.communicate(timeout=60)
    assert (program.returncode, err) == (127, "tpuctl: there is no program 'no-such-program' in this image\n")
