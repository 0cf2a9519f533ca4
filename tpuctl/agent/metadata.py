"""The metadata server of this host (Compute Engine, "VM metadata"), by hand: http.client takes longer to
import than all else that is done here. Where there is none, or it refuses, nothing is known and nobody is
told."""

import os

try:
    import _socket as socket  # without enumerations and selectors, whose import takes longer than to ask
except ImportError:
    import socket  # type: ignore[no-redef]

INSTANCE = "/computeMetadata/v1/instance/"
TIMEOUT_S = 5.0
NOTICE_TIMEOUT_S = 1.0
ANSWER_MAX = 65536


def ask(method, path, body="", timeout=TIMEOUT_S):
    """(status, text) of one request; (0, "") when nobody answered."""
    where = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    host, _, port = where.partition(":")
    head = "%s %s%s HTTP/1.1\r\nHost: %s\r\nMetadata-Flavor: Google\r\n" % (method, INSTANCE, path, host)
    head += "Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    answer = b""
    try:
        connection = socket.socket()  # IPv4, as the server's only address is on TPU VMs
        try:
            connection.settimeout(timeout)
            connection.connect((host, int(port or 80)))
            connection.sendall((head + body).encode())
            while len(answer) < ANSWER_MAX:
                part = connection.recv(4096)
                if not part:
                    break
                answer += part
        finally:
            connection.close()
        first, _, text = answer.partition(b"\r\n\r\n")
        return int(first.split()[1]), text.decode("utf-8", "replace").strip()
    except (OSError, ValueError, IndexError):
        return 0, ""


def value(path):
    """A value below `instance/`, or None where it cannot be had within a second."""
    status, text = ask("GET", path, timeout=NOTICE_TIMEOUT_S)
    return text if status == 200 else None


def notices():
    """What the cloud says that it does with this host: preempts it, or takes it down for maintenance."""
    return {"preempted": value("preempted") == "TRUE", "maintenance": value("maintenance-event") or ""}
