"""`hello`: what this host says of itself. `reach`: whether a port of another one hears it."""

import os
import sys
import time

import machine
from base import SCHEMA
from processes import boot_id

NUMBER = "attributes/agent-worker-number"


def hello(request, _stdin):
    """With `number` also what the metadata server calls this worker, nothing where it does not say."""
    chips, told = None, None
    if request["chips"]:
        from facts_chips import chips_facts

        chips = chips_facts(request)
    if request["sections"]:
        from facts import facts

        told = facts(request, None)
    number = None
    if request["number"]:
        from metadata import value

        number = value(NUMBER)
    space = os.statvfs(os.path.expanduser("~"))
    return {
        **machine.basics(),
        "schema": SCHEMA,
        "time": time.time(),
        "boot_id": boot_id(),
        "python_version": "%d.%d.%d" % sys.version_info[:3],
        "machine": os.uname().machine,
        "disk_free_bytes": space.f_bavail * space.f_frsize,
        "cpu_count": os.cpu_count(),
        "chips": chips,
        "number": number,
        "facts": told,
    }


def reach(request, _stdin):
    from metadata import socket

    where, seconds = (request["address"], request["port"]), request["seconds"]
    probe = socket.socket()
    try:
        probe.settimeout(seconds)
        probe.connect(where)
    except ConnectionRefusedError:
        pass  # its kernel has answered, so packets get there; firewalls of networks drop them without a word
    except OSError as error:
        return {"reached": False, "why": error.strerror or "no answer in %d s" % seconds}
    finally:
        probe.close()
    return {"reached": True}
