"""Standard input for a command in a session: the verb `feed` passes it on, through a pipe with a name.

It comes on a channel of its own. On that of the session, heartbeats would wait behind input that the command
does not take, and a client that is alive would look dead.

`feed` reads the name of the pipe as a line, then pieces, each behind a line with its size; a size of 0 is the
end. What breaks off without it is no end: the command, whose client is gone, is ended instead of believing in
one. It answers how many bytes the command took.
"""

import errno
import fcntl
import os
import select
import struct
import termios

from base import answer, make_dir, root
from client import Refused, Stdin

NOT_THERE_YET = (errno.ENOENT, errno.ENXIO)
POLL_MS = 20
POLL_MAX_MS = 200
PIECE_TIMEOUT_S = 15.0  # within a piece, which is sent as a whole


def pipe_path(name):
    return os.path.join(make_dir(root("incoming")), name)


def open_pipe(name, attend):
    """The read end, once `feed` has the other one. None when `attend`, which waits for it, turns false."""
    path = pipe_path(name)
    os.mkfifo(path, 0o600)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        if not attend(handle):
            return None
        os.read(handle, 1)  # says that the other end is open: before that, the pipe would look ended
        os.set_blocking(handle, True)
        return handle
    finally:
        os.unlink(path)


def feed():
    stdin = Stdin()
    pipe = connect(pipe_path(stdin.line().decode()))
    if pipe is None:
        return 1
    answer({"taken": pass_on(stdin, pipe)})
    return 0


def connect(path):
    """The write end; None when the client leaves before the session is there."""
    left = select.poll()
    left.register(0, select.POLLRDHUP)
    while True:
        try:
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, b"\n")
            os.set_blocking(pipe, True)
            return pipe
        except OSError as error:
            if error.errno not in NOT_THERE_YET:
                raise
        if left.poll(POLL_MS):
            return None


def pass_on(stdin, pipe):
    """Passes all on, as long as somebody reads. How much of it was read."""
    written, ended = 0, False
    try:
        while not ended and has_reader(pipe, stdin):
            size = int(stdin.line())
            for piece in stdin.exactly(size, PIECE_TIMEOUT_S):
                while piece:
                    count = os.write(pipe, piece)
                    written += count
                    piece = piece[count:]
            ended = size == 0
    except (BrokenPipeError, Refused, ValueError):
        pass  # nobody reads any more; or the client is gone, and the session ends the command
    wait_until_read(pipe, ended)
    taken = written - unread(pipe)
    os.close(pipe)  # the end of input, if there is still a reader
    return taken


def has_reader(pipe, stdin):
    """Waits for more of the input; false when nobody wants it."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(pipe, 0)
    return bool(stdin.rest) or pipe not in dict(poll.poll())


def wait_until_read(pipe, ended):
    """Until the reader has all or is gone; if the input broke off, only the latter, which the session does."""
    poll = select.poll()
    poll.register(pipe, 0)
    wait_ms = POLL_MS
    while (not ended or unread(pipe)) and not poll.poll(wait_ms):
        wait_ms = min(POLL_MAX_MS, 2 * wait_ms)


def unread(pipe):
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]
