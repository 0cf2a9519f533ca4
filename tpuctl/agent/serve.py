"""`serve`: requests of one client, one after the other, each done by a fork of this process.

To start Python costs a host several times what most verbs do. A fork has what was imported before it, and
nothing else of an earlier request.

It begins with a line, as a login script may print before it. A request is a line with the verb and the number
of bytes of its standard input, which follow. The answer comes in frames: a letter and, in 4 bytes, how many
bytes follow. `b`, which has none, says that the verb begins: a server that ends without it did nothing, but a
client that lost its connection does not know whether it was said. `o` and `e` are what the verb writes, and `x`
ends the answer: the exit status, or, below zero, the number of the signal that killed it.
"""

import os
import select

from client import CHUNK, Refused, Stdin, write_all
from entry import do_not_start, load

READY = b"\0tpuctl answers\n"
IDLE_MS = 600_000  # where the client's machine is gone, nothing says so for hours


def serve():
    home = os.getcwd()
    os.chdir("/")  # whatever is mounted elsewhere can be unmounted meanwhile
    write_all(1, READY)
    stdin, waiting = Stdin(), select.poll()
    waiting.register(0, select.POLLIN)
    while waiting.poll(IDLE_MS):
        try:
            verb, _, size = stdin.line().decode().partition(" ")
            if not verb:
                return 0
            body = b"".join(stdin.exactly(int(size)))
        except (Refused, ValueError) as error:
            write_all(2, os.fsencode("tpuctl: the request arrived damaged: %s\n" % error))
            return 1
        try:
            run = load(verb)
        except Exception as error:
            return do_not_start(error)
        try:
            answer_apart(verb, run, body, home)
        except BrokenPipeError:
            return 1  # the client went away; the verb goes on until it notices
    return 0


def answer_apart(verb, run, body, home):
    request = os.memfd_create("request")
    write_all(request, body)
    os.lseek(request, 0, os.SEEK_SET)
    (said, out), (told, err) = os.pipe(), os.pipe()
    send(b"b")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for handle, wanted in enumerate((request, out, err)):
                os.dup2(wanted, handle)
            for handle in (request, said, out, told, err):  # others are of modules, which keep them
                os.close(handle)
            os.chdir(home)
            code = run([verb])
        except Exception as error:
            write_all(2, os.fsencode("tpuctl: %r\n" % error))
        finally:
            os._exit(code)
    for handle in (request, out, err):
        os.close(handle)
    pass_on({said: b"o", told: b"e"})
    _, status = os.waitpid(child, 0)
    send(b"x", b"%d" % (-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)))


def pass_on(kinds):
    """What comes from these handles, in frames of their kind, until all have ended."""
    ready = select.poll()
    for handle in kinds:
        ready.register(handle, select.POLLIN)
    while kinds:
        for handle, _ in ready.poll():
            data = os.read(handle, CHUNK)
            if data:
                send(kinds[handle], data)
            else:
                ready.unregister(handle)
                os.close(handle)
                del kinds[handle]


def send(kind, data=b""):
    write_all(1, kind + len(data).to_bytes(4, "big") + data)
