"""`reach`: whether what this host sends to a port of another one gets there."""

from base import need
from metadata import socket


def reach(request, _stdin):
    address, port, seconds = (
        need(request, "address", str),
        need(request, "port", int),
        need(request, "seconds", int),
    )
    probe = socket.socket()
    try:
        probe.settimeout(seconds)
        probe.connect((address, port))
    except ConnectionRefusedError:
        pass  # its kernel has answered, so packets get there; firewalls of networks drop them without a word
    except OSError as error:
        return {"reached": False, "why": error.strerror or "no answer in %d s" % seconds}
    finally:
        probe.close()
    return {"reached": True}
