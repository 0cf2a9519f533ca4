"""Does the libtpu of an environment take its flags? The binary is asked on this machine, without a TPU.

A program with a flag that its libtpu does not know ends with status 1 when it begins to use the chips, on every
host. Which flags there are changes from release to release, so no table knows them.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import copyfileobj

from msgspec import Struct

from tpuctl.engine.events import Warn
from tpuctl.engine.services import Services
from tpuctl.envs.lock import Wheel, wheels_for
from tpuctl.envs.pinned import PinnedEnvironment
from tpuctl.envs.spec import run_variables
from tpuctl.errors import BadManifestError, UnreachableError
from tpuctl.lib.codec import from_data, parse_json, to_data
from tpuctl.lib.text import suggest
from tpuctl.model.shipped_files import read_template

LIBRARY = "libtpu/libtpu.so"
LIMIT_S = 60.0
"""For one question: it takes half a second, and 10 s where the file has to come from a slow disk first."""
RULES = 1
"""Of what is kept in the cache; another number asks again."""

_UNKNOWN = re.compile(r"ERROR: Unknown command line flag '([^']*)'(?:\. Did you mean: (.*?) ?\?)?$")
_ILLEGAL = re.compile(r"ERROR: Illegal value '(.*)' specified for flag '([^']*)'")
_OPTION = b"xla.DebugOptions."
"""Before the name of each flag of XLA_FLAGS, in the description of their protobuf message in the binary."""


class RefusedFlag(Struct, frozen=True):
    """A flag that the library does not take, such as `--xla_nope`, why, and flags that are like it."""

    flag: str
    why: str
    near: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """For a person, in one line."""
        guess = f"; did you mean {' or '.join(self.near)}?" if self.near else ""
        return f"{self.flag}: {self.why}{guess}"


class FlagCheck(Struct, frozen=True):
    """What a library said of flags. `unknown`: why it could not be asked."""

    refused: tuple[RefusedFlag, ...] = ()
    unknown: str = ""


def check_flags(services: Services, pinned: PinnedEnvironment, fetch: Callable[[Wheel], Path]) -> None:
    """Asks the libtpu of an environment whether it takes all flags of the environment. Each question is asked
    once on a machine. Where it cannot be asked, such as on a Mac, that is said, and the hosts ask theirs when
    the environment is installed.

    `fetch` brings a file of the lock to this machine. Raises BadManifestError with the flags that are refused,
    and what `fetch` raises.
    """
    variables = run_variables(pinned.spec)
    libtpu, xla = variables.get("LIBTPU_INIT_ARGS", ""), variables.get("XLA_FLAGS", "")
    if not libtpu and not xla:
        return
    libraries = _libraries(pinned)
    if libtpu and not libraries:
        told = "no libtpu of it is on this machine, so its flags are not checked: a wrong one ends programs"
        services.emit(Warn("", f"environment {pinned.spec.name}: {told}"))
    for file in libraries:
        answer = _answer(services, file, libtpu, xla, fetch)
        if answer.unknown:
            told = f"its flags are checked on the hosts only: {answer.unknown}"
            services.emit(Warn("", f"environment {pinned.spec.name}: {told}"))
        if answer.refused:
            listed = "\n  ".join(each.said for each in answer.refused)
            raise BadManifestError(
                f"{file.name} of environment {pinned.spec.name} does not take all its flags:\n  {listed}",
                hint="its flag_profiles, libtpu_flags, xla_flags; flags come and go with each libtpu",
                details={"flags": [to_data(each) for each in answer.refused]},
            )


def _libraries(pinned: PinnedEnvironment) -> list[Wheel]:
    """The files that bring libtpu.so: a wheel for each Python, or what is put in its place."""
    own = [file for file in pinned.spec.files if file.to.endswith(LIBRARY)]
    if own:
        return [Wheel("libtpu.so", each.source, each.sha256) for each in own if not each.source.startswith("/")]
    found = {}
    for minor in pinned.spec.python:
        for wheel in wheels_for(pinned.packages, minor):
            if wheel.name.startswith("libtpu-"):
                found[wheel.sha256] = wheel
    return list(found.values())


def _answer(
    services: Services, file: Wheel, libtpu: str, xla: str, fetch: Callable[[Wheel], Path]
) -> FlagCheck:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        here = f"{platform.system()} on {platform.machine()}"
        return FlagCheck(unknown=f"libtpu is for Linux on x86_64, and this is {here}")
    asked = json.dumps([RULES, file.sha256, libtpu, xla])
    kept = services.wheel_cache / "flags" / f"{hashlib.sha256(asked.encode()).hexdigest()}.json"
    with suppress(OSError, ValueError):  # never asked, or by a command that was killed
        return from_data(FlagCheck, parse_json(kept.read_text(encoding="utf-8")))
    path = fetch(file)
    with tempfile.TemporaryDirectory(prefix=".libtpu-", dir=services.wheel_cache) as temporary:
        try:
            library = path if file.name == "libtpu.so" else unpack_library(path, Path(temporary))
        except OSError as error:
            return FlagCheck(unknown=f"{file.name} cannot be unpacked here: {error.strerror}")
        answer = probe_library(library, libtpu, xla, Path(temporary))
    if not answer.unknown:
        kept.parent.mkdir(mode=0o700, exist_ok=True)
        fresh = kept.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(to_data(answer)), encoding="utf-8")
        fresh.replace(kept)
    return answer


def unpack_library(wheel: Path, folder: Path) -> Path:
    """`libtpu.so` of a wheel, in `folder`. Raises OSError, BadManifestError for another wheel."""
    target = folder / "libtpu.so"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(LIBRARY) as source, target.open("wb") as file:
            copyfileobj(source, file, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise BadManifestError(f"{wheel.name} is no wheel with {LIBRARY}: {error}") from error
    return target


def probe_library(library: Path, libtpu: str, xla: str, folder: Path) -> FlagCheck:
    """What a `libtpu.so` says of LIBTPU_INIT_ARGS and XLA_FLAGS; `folder` is where it may leave files.

    It knows its own flags itself. XLA_FLAGS it reads only at its first compilation, so their names are looked
    for in the binary, and none may be a flag of libtpu: that ends a program as well.
    """
    own = _initialize(library, libtpu, folder) if libtpu else FlagCheck()
    if own.unknown or not xla:
        return own
    flags = [word for word in xla.split() if word.startswith("--")]
    misplaced = _initialize(library, " ".join(flags), folder)
    if misplaced.unknown:
        return misplaced
    unheard = {_name(each.flag) for each in misplaced.refused if each.why == NO_FLAG}
    here = [flag for flag in flags if _name(flag) not in unheard]
    refused = [RefusedFlag(flag, "a flag of libtpu, which belongs into libtpu_flags") for flag in here]
    refused += _unnamed(library, [flag for flag in flags if _name(flag) in unheard])
    return FlagCheck((*own.refused, *refused))


NO_FLAG = "there is no such flag"


def _unnamed(library: Path, flags: Sequence[str]) -> list[RefusedFlag]:
    """Flags whose name is nowhere in the binary."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        lacking = [flag for flag in flags if content.find(_name(flag).encode() + b"\0") < 0]
        options = _options(content) if lacking else []
    found = []
    for flag in lacking:
        near = suggest(_name(flag), options)
        found.append(RefusedFlag(flag, NO_FLAG, (f"--{near}",) if near else ()))
    return found


def _options(content: mmap.mmap) -> list[str]:
    found, at = set(), content.find(_OPTION)
    while at >= 0:
        end = content.find(b"\0", at)
        found.add(content[at + len(_OPTION) : end].decode("ascii", errors="replace"))
        at = content.find(_OPTION, end)
    return sorted(found)


def _name(flag: str) -> str:
    return flag.removeprefix("--").partition("=")[0]


def _initialize(library: Path, flags: str, folder: Path) -> FlagCheck:
    """What libtpu says of flags when it begins. It touches no device, and asks no metadata server."""
    environ = {
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # without it two that ask at once are in each other's way
        "LIBTPU_INIT_ARGS": flags,
        "TPU_ACCELERATOR_TYPE": "v4-8",
        "TPU_LOG_DIR": str(folder),
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", read_template("libtpu_flags.py").decode(), str(library)],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return FlagCheck(unknown=f"libtpu did not answer within {LIMIT_S:.0f} s")
    except OSError as error:
        raise UnreachableError(f"{sys.executable} cannot be started: {error}") from error
    return parse_answer(done.returncode, done.stdout, done.stderr, flags)


def parse_answer(status: int, stdout: str, stderr: str, flags: str) -> FlagCheck:
    """What the output of the probe means; pure."""
    words = {_name(word): word for word in flags.split()}
    refused = []
    for line in stderr.splitlines():
        unknown, illegal = _UNKNOWN.search(line), _ILLEGAL.search(line)
        if unknown:
            near = tuple(f"--{each}" for each in (unknown[2] or "").split(", ") if each)
            refused.append(RefusedFlag(words.get(unknown[1], f"--{unknown[1]}"), NO_FLAG, near))
        elif illegal:
            flag = words.get(illegal[2], f"--{illegal[2]}")
            refused.append(RefusedFlag(flag, f"{illegal[1]!r} is no value of it"))
    if refused:
        return FlagCheck(tuple(refused))
    if "ACCEPTED" in stdout.splitlines():
        return FlagCheck()
    if status == 1 and "Traceback" not in stderr:
        return FlagCheck((RefusedFlag(flags, "libtpu ends at once with these flags"),))
    last = (stdout + stderr).strip().splitlines()[-1:] or ["it said nothing"]
    return FlagCheck(unknown=f"libtpu does not begin on this machine (status {status}): {last[0][:200]}")
