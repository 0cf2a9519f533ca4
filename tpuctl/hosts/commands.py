"""What runs the agent: the commands that start and install it, and the request of a session.

The agent (`tpuctl/agent/`) lies on a host under a name made from its content: a host with another one
answers `EXIT_NOT_INSTALLED` and is given ours. What it answers is in `hosts/protocol.py`, and
how attempts stand in `hosts/worker_status.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpuctl.errors import UsageError
from tpuctl.lib.shell import quote

EXIT_NOT_INSTALLED = 97
NOT_INSTALLED_LINE = b"tpuctl: no agent here\n"
"""What comes last on stderr with that exit status, which a command in a session may have by itself."""
HEARTBEAT_S = 5.0
"""Interval of the newlines that a `RemoteCall` with `hold_stdin` sends."""
SILENCE_S = 15.0
"""A session is ended after this long without a heartbeat: three in a row are missing."""
LINK_SILENCE_S = 12.0
"""A connection that gave no sign of life for this long, asked for one since a third of it, is given up. With
the time to notice and to tell, a worker that falls silent in mid-command is reported within 16 s."""

AGENT_FOLDER = ".tpuctl/bin"
"""Below the home directory."""

# As a module of a path, not as a script: Python keeps compiled modules, but compiles a script at every start.
_START = f"""import sys
sys.path.insert(0, sys.argv.pop(1))
try:
    from entry import main
except Exception as error:
    sys.stderr.write("tpuctl: the agent does not start: %r\\n{NOT_INSTALLED_LINE.decode().strip()}\\n" % error)
    sys.exit({EXIT_NOT_INSTALLED})
sys.exit(main(sys.argv[1:]))
"""
# One process does all of it, and goes on with a verb: to start a program costs a host more than most of this.
# Not as a script either: before it runs an archive, Python imports what it needs for that alone. What follows
# the archive on stdin is for the verb, so no more is read. The agent notes the login's mask for new files and
# gives it back to programs, so it is not changed before; until then nothing is made: the archive is in memory.
_INSTALL = f"""import os, sys
try:
    from _sha2 import sha256
except ImportError:
    try:
        from _sha256 import sha256
    except ImportError:
        from hashlib import sha256
place, digest, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
data = b""
while len(data) < size:
    piece = os.read(0, size - len(data))
    if not piece:
        break
    data += piece
if sha256(data).hexdigest() != digest:
    sys.stderr.write("the agent arrived damaged\\n")
    sys.exit(1)
handle = os.memfd_create("agent")
with open(handle, "wb") as file:
    file.write(data)
    file.flush()
    del data
    sys.path.insert(0, "/proc/self/fd/%d" % handle)
    from install import install
    status = install(sys.path.pop(0), place)
if status or not sys.argv[4:]:
    sys.exit(status)
sys.argv[1:] = [place, sys.argv[4]]
{_START}"""


def agent_name(agent_sha256: str) -> str:
    """Name of the installed agent, a folder in `AGENT_FOLDER`."""
    return f"agent-{agent_sha256[:16]}"


def render_agent_command(verb: str, agent_sha256: str) -> str:
    """Command that runs the agent; where there is none that starts, it says `NOT_INSTALLED_LINE` on stderr and
    exits with `EXIT_NOT_INSTALLED`."""
    path = _path(agent_sha256)
    absent = NOT_INSTALLED_LINE.decode().strip()
    there = f"test -d {path} || {{ echo '{absent}' >&2; exit {EXIT_NOT_INSTALLED}; }}"
    return f"{there}; exec python3 -I -S -c '{_START}' {path} {quote(verb)}"


def render_install_command(agent_sha256: str, size: int, verb: str = "") -> str:
    """Command that stores the agent, the first `size` bytes of stdin, after checking its digest; safe to run
    twice and at once. It goes on with `verb`, if there is one, as `render_agent_command` does.

    What arrives is an archive of modules; that called `install` does the rest.
    """
    words = f"{_path(agent_sha256)} {agent_sha256} {size} {verb}".rstrip()
    return f"exec python3 -I -S -c '{_INSTALL}' {words}"


def _path(agent_sha256: str) -> str:
    return f'"$HOME"/{AGENT_FOLDER}/{agent_name(agent_sha256)}'


def render_session_request(
    command: Sequence[str] | str,
    env: Mapping[str, str],
    *,
    cwd: str | None = None,
    pipe: str = "",
    grace_s: float = 2.0,
    silence_s: float = SILENCE_S,
) -> bytes:
    """What the verb `session` reads: the number of bytes, then words that end with a NUL (see
    `tpuctl/agent/session.py`). `command` is arguments, or text for the login shell; `pipe` names where
    the verb `feed` puts its standard input.

    Raises UsageError for a NUL, which no argument can hold.
    """
    text, argv = (command, ()) if isinstance(command, str) else ("", command)
    variables = [f"{name}={value}" for name, value in env.items()]
    words = [f"{grace_s:g}", f"{silence_s:g}", cwd or "", pipe, text, str(len(argv)), *argv, *variables]
    if any("\0" in word for word in words):
        raise UsageError("arguments and variables cannot hold a NUL")
    body = b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in words)
    return b"%d\n%s" % (len(body), body)
