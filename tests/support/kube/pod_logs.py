"""The logs of containers as kubelets serve them: the API server asks here when somebody asks it for a log."""

from __future__ import annotations

import io
import itertools
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

FindLog = Callable[[str, str, str], tuple[Path, Callable[[], bool]] | None]
"""By namespace, pod and container: the file, and whether more may come."""
POLL_S = 0.1


def lines_of(log: Path, growing: Callable[[], bool], query: dict[str, str]) -> Iterator[bytes]:
    """What a kubelet would send of a file whose lines begin with their time."""
    lines = list(io.BytesIO(log.read_bytes()))  # a line ends with \n alone
    position = sum(map(len, lines))
    since = query.get("sinceTime", "")
    chosen = [line for line in lines if not since or line.split(b" ", 1)[0].decode()[:19] >= since[:19]]
    if "tailLines" in query:
        chosen = chosen[len(chosen) - min(len(chosen), int(query["tailLines"])) :]
    following = _grow(log, position, growing) if query.get("follow") == "true" else ()
    left = int(query.get("limitBytes", "0")) or None
    for line in itertools.chain(chosen, following):
        shown = line if query.get("timestamps") == "true" else line.split(b" ", 1)[1]
        yield shown[:left]
        if left is not None and (left := left - len(shown)) <= 0:
            return


def _grow(log: Path, position: int, growing: Callable[[], bool]) -> Iterator[bytes]:
    with log.open("rb") as file:
        file.seek(position)
        while True:
            last = not growing()
            yield from io.BytesIO(file.read())  # lines are written whole
            if last:
                return
            time.sleep(POLL_S)


@contextmanager
def serving_logs(find: FindLog, certificate: Path) -> Iterator[int]:
    """The port."""

    class Logs(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(asked.query).items()}
            match asked.path.strip("/").split("/"):
                case ["containerLogs", namespace, pod, container] if found := find(namespace, pod, container):
                    self.send_response(200)
                    self.send_header("Content-Type", "text/plain")
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    for line in lines_of(*found, query):
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
                    self.wfile.write(b"0\r\n\r\n")
                case _:
                    self.send_error(404)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Logs)
    server.daemon_threads = True
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust.load_cert_chain(certificate)
    server.socket = trust.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
