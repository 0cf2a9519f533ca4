"""A sign of life of this host that can be read without reaching it: a guest attribute that keeps changing.

It goes through the metadata server (Compute Engine, "Set and query guest attributes"). Where that refuses or is
not there, nothing is published and nobody is told: what reads it must do without.
"""

import os
import socket
import threading
import time

from processes import boot_id

PATH = "/computeMetadata/v1/instance/guest-attributes/tpuctl/heartbeat"
TIMEOUT_S = 5.0


def value():
    """Another one each millisecond, also after a reboot. Not the time of day, which may be set back."""
    return "%s-%d" % (boot_id()[:8], time.monotonic() * 1000)


def ask(method, body=""):
    """One request to the metadata server; whether it was taken. By hand: http.client takes longer to import
    than all else that is done here."""
    where = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
    host, _, port = where.partition(":")
    head = "%s %s HTTP/1.1\r\nHost: %s\r\nMetadata-Flavor: Google\r\n" % (method, PATH, host)
    head += "Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    try:
        with socket.create_connection((host, int(port or 80)), timeout=TIMEOUT_S) as connection:
            connection.sendall((head + body).encode())
            return connection.recv(64).split()[1:2] == [b"200"]
    except (OSError, ValueError):
        return False


class Heartbeat:
    """Beats in a thread of its own until it is stopped: a metadata server that hangs keeps nobody waiting."""

    def __init__(self, interval):
        self.interval = interval
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.beat, daemon=True)
        self.thread.start()

    def beat(self):
        beating = False
        while not self.over.is_set():
            beating = ask("PUT", value()) or beating
            self.over.wait(self.interval)
        pause = 0.1
        while beating and not ask("DELETE") and pause < 5.0:
            # One that is withdrawn is not taken for one that stands still because its host died.
            time.sleep(pause)
            pause *= 2

    def stop(self):
        self.over.set()
        self.thread.join(10 * TIMEOUT_S)
