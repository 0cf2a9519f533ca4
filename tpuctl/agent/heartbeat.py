"""A sign of life of this host that can be read without reaching it: a guest attribute that keeps changing.

It goes through the metadata server (Compute Engine, "Set and query guest attributes"). Where that refuses or is
not there, nothing is published and nobody is told: what reads it must do without.
"""

import threading
import time

from metadata import TIMEOUT_S, ask
from processes import boot_id

PATH = "guest-attributes/tpuctl/heartbeat"


def value():
    """Another one each millisecond, also after a reboot. Not the time of day, which may be set back."""
    return "%s-%d" % (boot_id()[:8], time.monotonic() * 1000)


def publish(method, body=""):
    """Writes or removes the heartbeat; whether that was taken."""
    return ask(method, PATH, body)[0] == 200


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
            beating = publish("PUT", value()) or beating
            self.over.wait(self.interval)
        pause = 0.1
        while beating and not publish("DELETE") and pause < 5.0:
            # One that is withdrawn is not taken for one that stands still because its host died.
            time.sleep(pause)
            pause *= 2

    def stop(self):
        self.over.set()
        self.thread.join(10 * TIMEOUT_S)
