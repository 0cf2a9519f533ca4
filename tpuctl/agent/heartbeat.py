"""A sign of life of this host that can be read without reaching it: a guest attribute that keeps changing.

It goes through the metadata server (Compute Engine, "Set and query guest attributes"). Where that refuses or is
not there, nothing is published and nobody is told: what reads it must do without.
"""

import _thread  # `threading` takes as long to import as all else that the supervisor does for a heartbeat
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
        self.going, self.withdrawing = _thread.allocate_lock(), _thread.allocate_lock()
        self.going.acquire()
        self.withdrawing.acquire()
        _thread.start_new_thread(self.beat, ())

    def beat(self):
        try:
            beating = publish("PUT", value())
            while not self.going.acquire(timeout=self.interval):
                beating = publish("PUT", value()) or beating
            pause = 0.1
            while beating and not publish("DELETE") and pause < 5.0:
                # One that is withdrawn is not taken for one that stands still because its host died.
                time.sleep(pause)
                pause *= 2
        finally:
            self.withdrawing.release()

    def stop(self):
        self.going.release()
        self.withdrawing.acquire(timeout=10 * TIMEOUT_S)
