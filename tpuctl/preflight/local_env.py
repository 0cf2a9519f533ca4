"""The packages of a pinned environment on this machine, for programs that look at a user's code before a run.

Such a program is never imported by tpuctl: it has a process of its own, with the interpreter that is made
here, as the hosts have it. uv links packages out of its cache, so that a second environment costs little.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from tpuctl.envs.lock import file_name
from tpuctl.envs.pinned import PinnedEnvironment, environment_key
from tpuctl.envs.spec import run_variables
from tpuctl.errors import TpuctlError, UnreachableError, UsageError

INSTALL_S = 900.0
"""libtpu and jaxlib are 300 MB."""
MARK = ".complete"
OWN = "--python FILE, an interpreter that has the packages"


class LocalPython(Struct, frozen=True):
    """A Python with the variables that a run of the environment has."""

    python: Path
    variables: Mapping[str, str]


def given_interpreter(python: Path) -> LocalPython:
    """What `--python` names. Raises UsageError where it is no program."""
    if not os.access(python, os.X_OK) or python.is_dir():
        raise UsageError(
            f"--python {python}: there is no such interpreter", hint="name the python of a virtual environment"
        )
    return LocalPython(python.absolute(), {})


def ensure_interpreter(pinned: PinnedEnvironment, folder: Path, say: Callable[[str], None]) -> LocalPython:
    """Installs the environment below `folder` if it is not there. One command at a time; what a killed one
    left is made again.

    Raises UsageError for an environment that only hosts have, UnreachableError and TpuctlError with uv's words.
    """
    spec = pinned.spec
    if spec.unmanaged is not None:
        raise UsageError(f"environment {spec.name} is on hosts only", hint=OWN)
    minor = spec.python[0]
    place = folder / environment_key(pinned, minor)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / MARK).exists():
            say(f"installing environment {spec.name} on this machine, in {place}")
            shutil.rmtree(place, ignore_errors=True)
            _install(pinned, minor, place)
            (place / MARK).touch()
    return LocalPython(place / "bin" / "python", run_variables(spec))


def _install(pinned: PinnedEnvironment, minor: str, place: Path) -> None:
    name = pinned.spec.name
    _uv(name, "venv", "--quiet", "--python", minor, str(place))
    lock = place / file_name(name)
    lock.write_text(pinned.lock, encoding="utf-8")
    _uv(name, "pip", "sync", "--quiet", "--python", str(place / "bin" / "python"), str(lock))


def _uv(name: str, *words: str) -> None:
    import uv

    environ = {**os.environ, "UV_NO_PROGRESS": "1"}
    environ.pop("VIRTUAL_ENV", None)
    environ.setdefault("UV_SYSTEM_CERTS", "1")
    try:
        done = subprocess.run(
            [uv.find_uv_bin(), "--no-config", "--color", "never", *words],
            capture_output=True,
            text=True,
            env=environ,
            timeout=INSTALL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnreachableError(f"environment {name} cannot be installed here: {error}", hint=OWN) from error
    if done.returncode:
        said = done.stderr.strip()[-1500:]
        raise TpuctlError(f"environment {name} cannot be installed on this machine:\n{said}", hint=OWN)
