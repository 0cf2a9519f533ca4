"""`serve` and `fetch`: contents from one host to the others, authenticated and verified."""

import contextlib
import os
import select
import time

from base import Refused, answer, make_dir, need
from client import CHUNK
from contents import blob_path, blobs_of, find_tree, part_size, store_blob
from frames import head, read_begin, read_pieces, render_begin, render_failure
from lacking import lacking_of

PEER_SILENCE_S = 60.0
SERVED_AT_ONCE = 128
ASKED_AT_ONCE = 200


def seal(token, role, first, second):
    import hmac

    return hmac.new(token, role + first + second, "sha256").digest()


def token_of(request):
    token = bytes.fromhex(request["token"])
    if len(token) < 32:
        raise Refused("bad-request", "the token is too short")
    return token


def serve(request, _stdin):
    """Hands out contents to whoever knows the token, which it makes and tells with its port, until nobody has
    asked for `idle_s` seconds.

    Contents travel in the clear between hosts of one network; who may ask, and what arrives, is checked.
    """
    import socket
    import threading

    area, token = request["area"], os.urandom(32)
    make_dir(os.path.dirname(blob_path(area, "0" * 64)))
    try:
        listener = socket.create_server((request["address"], 0), backlog=256)
    except OSError as error:
        raise Refused("no-address", "cannot listen on %s: %s" % (request["address"], error)) from error
    answer({"progress": "serving", "port": listener.getsockname()[1], "token": token.hex()})
    asked = time.monotonic()
    while time.monotonic() < asked + request["idle_s"]:
        readable = select.select([listener], [], [], 1.0)[0]
        if readable and threading.active_count() < SERVED_AT_ONCE:
            connection = listener.accept()[0]
            threading.Thread(target=attend, args=(connection, area, token), daemon=True).start()
        if threading.active_count() > 1:
            asked = time.monotonic()
    answer({"served": True})
    os._exit(0)


def attend(connection, area, token):
    """One connection: a challenge both ways, then contents by their digests."""
    import hmac

    with connection, contextlib.suppress(OSError, EOFError, Refused):
        connection.settimeout(10.0)
        ours = os.urandom(32)
        connection.sendall(ours)
        theirs = read_exactly(connection, 64)
        if not hmac.compare_digest(theirs[32:], seal(token, b"fetch", ours, theirs[:32])):
            return
        connection.sendall(seal(token, b"serve", theirs[:32], ours))
        connection.settimeout(PEER_SILENCE_S)
        asked = connection.makefile("rb")
        for line in iter(lambda: asked.readline(100), b""):
            digest, _, start = line.decode("ascii", "replace").strip().partition(" ")
            send_blob(connection, area, digest, int(start) if start.isdigit() else 0)


def send_blob(connection, area, digest, start):
    """Its content from byte `start`, as one piece by the kernel."""
    try:
        with open(blob_path(area, digest), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            begun = render_begin(digest, size, min(start, size))
            connection.sendall(begun + head(size - start) if start < size else begun)
            connection.sendfile(file, start)
    except FileNotFoundError:
        connection.sendall(render_failure(digest, Refused("missing-blob", "it is not here")))


def read_exactly(connection, size):
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise EOFError("the other host hung up")
        data += chunk
    return data


def fetch(request, _stdin):
    """Gets the tree, and of its contents what this host lacks, from a host that serves them.

    The answer is that of `lacks`: what the other host had not is still lacking.
    """
    area, tree = request["area"], request["tree"]
    make_dir(os.path.dirname(blob_path(area, tree)))
    try:
        peer = Peer(request)
        with peer.connection:
            if find_tree(area, tree) is None:
                peer.get(area, [(tree, None)])
            entries = find_tree(area, tree) or []
            wanted = blobs_of(entries)
            bits = int(lacking_of(request)["lacking"] or "0", 16)
            peer.get(area, [blob for number, blob in enumerate(wanted) if bits >> number & 1])
    except BlockingIOError:
        raise Refused(
            "no-peer", "%s has sent nothing for %d s" % (request["address"], PEER_SILENCE_S)
        ) from None
    except (OSError, EOFError) as error:
        raise Refused("no-peer", "cannot fetch from %s: %s" % (request["address"], error)) from error
    return {**lacking_of(request), "bytes": peer.bytes}


class Peer:
    """The connection to a host that serves, after both have shown that they know the token."""

    def __init__(self, request):
        import hmac
        import socket
        import struct

        token = token_of(request)
        where = (request["address"], need(request, "port", int))
        self.bytes = 0
        self.told = time.monotonic()
        self.connection = socket.create_connection(where, timeout=10.0)
        try:
            theirs, ours = read_exactly(self.connection, 32), os.urandom(32)
            self.connection.sendall(ours + seal(token, b"fetch", theirs, ours))
            if not hmac.compare_digest(read_exactly(self.connection, 32), seal(token, b"serve", ours, theirs)):
                raise Refused("no-peer", "the other host does not know the token")
            # The kernel waits for whole pieces: one call for each instead of one for what each packet brings.
            self.connection.settimeout(None)
            silence = struct.pack("ll", int(PEER_SILENCE_S), 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, silence)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, silence)
        except BaseException:
            self.connection.close()
            raise

    def get(self, area, blobs):
        """Asks in batches, so that neither side waits for the other with full buffers."""
        for first in range(0, len(blobs), ASKED_AT_ONCE):
            batch = blobs[first : first + ASKED_AT_ONCE]
            come = {digest: part_size(blob_path(area, digest)) for digest, _ in batch}
            self.connection.sendall("".join("%s %d\n" % each for each in come.items()).encode())
            for digest, expected in batch:
                try:
                    begun = read_begin(self.read)
                except Refused as error:
                    if error.code == "missing-blob":
                        continue
                    raise
                if begun is None or begun[0] != digest or expected not in (None, begun[1]):
                    raise Refused("bad-payload", "the other host has another %s" % digest)
                _, size, start = begun
                if start != come[digest]:
                    raise Refused("bad-payload", "more came of %s than there is" % digest)
                store_blob(area, digest, size, self.count(read_pieces(self.read, size - start)), start)

    def count(self, pieces):
        for piece in pieces:
            self.bytes += len(piece)
            if time.monotonic() - self.told > 1.0:
                self.told = time.monotonic()
                answer({"progress": "fetching", "bytes": self.bytes})
            yield piece

    def read(self, size):
        """Pieces that are good until the next one is asked for."""
        import socket

        buffer = memoryview(bytearray(min(size, CHUNK)))
        while size:
            count = self.connection.recv_into(buffer[:size], 0, socket.MSG_WAITALL)
            if not count:
                raise EOFError("the other host hung up")
            size -= count
            yield buffer[:count]
