"""A bastion: what arrives on stdin goes to HOST PORT from inside the network, and back. Run as a program."""

from __future__ import annotations

import os
import select
import socket
import sys

CHUNK = 65536


def relay(host: str, port: int) -> None:
    with socket.create_connection((host, port), 10) as sock:
        while True:
            for ready in select.select([0, sock], [], [])[0]:
                data = os.read(0, CHUNK) if ready == 0 else sock.recv(CHUNK)
                if not data:
                    return
                if ready == 0:
                    sock.sendall(data)
                else:
                    os.write(1, data)


if __name__ == "__main__":
    relay(sys.argv[1], int(sys.argv[2]))
