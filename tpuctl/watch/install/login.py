"""Scripts on another machine by the user's own `ssh`, with its configuration, keys and known hosts."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from tpuctl.errors import TpuctlError, UnreachableError
from tpuctl.lib.shell import quote

OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-T")
TIMEOUT_S = 900.0
"""An install fetches some hundred packages on a small machine."""


def send_file(login: str, name: str, content: bytes) -> None:
    """Puts a file into tpuctl's folder below the other machine's home; whole or not at all."""
    folder = 'folder=${XDG_DATA_HOME:-$HOME/.local/share}/tpuctl; umask 077; mkdir -p "$folder" && '
    command = f'{folder}cat >"$folder/".part-$$ && mv "$folder/".part-$$ "$folder/"{quote(name)}'
    run_there(login, command, content, lambda _: None)


def run_script(login: str, script: str, tell: Callable[[str], None]) -> None:
    """Runs a script of POSIX sh there; every line that it prints goes to `tell`."""
    run_there(login, "sh -s", script.encode(), tell)


def run_there(login: str, command: str, stdin: bytes, tell: Callable[[str], None]) -> None:
    """Raises UnreachableError when ssh does not get there, TpuctlError when the command fails there."""
    words = ["ssh", *OPTIONS, "--", login, command]
    try:
        done = subprocess.run(
            words, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError as error:
        raise TpuctlError("ssh is not installed here", hint="apt-get install openssh-client") from error
    except subprocess.TimeoutExpired as error:
        raise TpuctlError(f"{login} took longer than {TIMEOUT_S:.0f} s", hint=f"ssh {login}") from error
    lines = done.stdout.decode(errors="replace").splitlines()
    if done.returncode == 255:
        raise UnreachableError(f"ssh {login}: {' '.join(lines[-3:])}", hint=f"ssh {login} must work by itself")
    for line in lines:
        tell(line)
    if done.returncode != 0:
        raise TpuctlError(
            f"{login} said: {' '.join(lines[-3:]) or f'exit status {done.returncode}'}",
            hint=f"mend that on {login}, then type it again",
            details={"status": done.returncode, "output": lines},
        )
