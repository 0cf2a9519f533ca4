"""The watchdog of another machine: scripts there by the user's own `ssh`, with its configuration, keys and
known hosts, and the tpuctl that runs now as a wheel: it gets this very version, and nothing from an index.

The same files make the same bytes. Format:
https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

from __future__ import annotations

import base64
import hashlib
import io
import subprocess
import zipfile
from collections.abc import Callable
from importlib import metadata

from tpuctl.errors import TpuctlError, UnreachableError
from tpuctl.lib.shell import quote
from tpuctl.model.shipped_files import read_package

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


NAME = "tpuctl"


def build_wheel() -> tuple[str, bytes]:
    """File name and content."""
    found = metadata.distribution(NAME)
    info = f"{NAME}-{found.version}.dist-info"
    requires = [line for line in found.requires or [] if "extra ==" not in line]
    head = [
        "Metadata-Version: 2.1",
        f"Name: {NAME}",
        f"Version: {found.version}",
        f"Requires-Python: {found.metadata['Requires-Python']}",
        *(f"Requires-Dist: {line}" for line in requires),
    ]
    files = {
        **read_package(),
        f"{info}/METADATA": _lines(head),
        f"{info}/WHEEL": _lines(
            ["Wheel-Version: 1.0", "Generator: tpuctl", "Root-Is-Purelib: true", "Tag: py3-none-any"]
        ),
        f"{info}/entry_points.txt": _lines(["[console_scripts]", "tpuctl = tpuctl.cli.main:main"]),
    }
    record = [f"{path},sha256={_digest(content)},{len(content)}" for path, content in files.items()]
    files[f"{info}/RECORD"] = _lines([*record, f"{info}/RECORD,,"])
    return f"{NAME}-{found.version}-py3-none-any.whl", _zip(files)


def _zip(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as bundle:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            bundle.writestr(entry, content)
    return packed.getvalue()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _lines(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()
