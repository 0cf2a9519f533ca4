"""How a pod gets its bundle over a network that is not always there."""

from __future__ import annotations

import runpy
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

POD = Path(__file__).parents[2] / "templates" / "pod.py"
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
