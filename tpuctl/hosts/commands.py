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
# Not as a script either: before it runs an archive, Python imports what it needs for that alone.
_INSTALL = """import sys
sys.path.insert(0, sys.argv[1])
from install import install
sys.exit(install(sys.argv[2]))
"""


def agent_name(agent_sha256: str) -> str:
    """Name of the installed agent, a folder in `AGENT_FOLDER`."""
    return f"agent-{agent_sha256[:16]}"


def render_agent_command(verb: str, agent_sha256: str) -> str:
    """Command that runs the agent; where there is none that starts, it says `NOT_INSTALLED_LINE` on stderr and
    exits with `EXIT_NOT_INSTALLED`."""
    path = f'"$HOME"/{AGENT_FOLDER}/{agent_name(agent_sha256)}'
    absent = NOT_INSTALLED_LINE.decode().strip()
    there = f"test -d {path} || {{ echo '{absent}' >&2; exit {EXIT_NOT_INSTALLED}; }}"
    return f"{there}; exec python3 -I -S -c '{_START}' {path} {quote(verb)}"


def render_install_command(agent_sha256: str) -> str:
    """Command that stores the agent from stdin after checking its digest; safe to run twice and at once.

    What arrives is an archive of modules; that called `install` does the rest.
    """
    return (
        f'umask 077; mkdir -p "$HOME/{AGENT_FOLDER}" && t=$(mktemp "$HOME/{AGENT_FOLDER}/.new.XXXXXX") && '
        'cat > "$t" && '
        f'case $(sha256sum < "$t") in {agent_sha256}*) '
        f'python3 -I -S -c \'{_INSTALL}\' "$t" {agent_name(agent_sha256)}; s=$?; rm -f "$t"; exit $s;; '
        '*) rm -f "$t"; echo "the agent arrived damaged" >&2; exit 1;; esac'
    )


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
