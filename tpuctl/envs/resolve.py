"""Resolves an environment's requirements with uv into exact wheels with their hashes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from tpuctl.envs.addresses import open_address
from tpuctl.envs.load import check_lock, read_environment
from tpuctl.envs.lock import Lock, LockedPackage, Wheel, cuda_builds, cuda_hint, parse_lock, wheel_rank
from tpuctl.envs.pinned import PinnedEnvironment, digest_of
from tpuctl.envs.spec import EnvironmentSpec, InstallFrom
from tpuctl.errors import TpuctlError, UnreachableError, UsageError

GLIBC = "x86_64-manylinux_2_35"
"""Ubuntu 22.04, which all images of TPU VMs are."""
TIMEOUT_S = 600.0
"""For uv: a resolution with a cold cache reads the metadata of large wheels."""
SIZES_AT_ONCE = 8
"""Wheels whose sizes are asked at the same time: MaxText has 236 packages."""
UV = "uv>=0.13,<0.14"
"""What hosts install with; the same as this machine's."""


def resolve_environment(spec: EnvironmentSpec) -> Lock:
    """The lock of an environment: its packages, uv for the hosts, and an interpreter where one can be had.

    Raises TpuctlError with uv's own words when it does not resolve, UnreachableError when an index does not
    answer.
    """
    _find_uv()  # before there are threads: what sysconfig reads for it the first time is not guarded
    with ThreadPoolExecutor(1) as pool:  # uv waits for the index most of its time
        installer = pool.submit(lambda: _sized(_installer(spec)))
        packages = _compile(spec, spec.requirements)
    thinned = [_thinned(package, spec.python) for package in packages]
    if spec.install_from is InstallFrom.WHEELHOUSE:
        with ThreadPoolExecutor(SIZES_AT_ONCE) as pool:
            asked = [pool.map(_sized, each.wheels) for each in thinned]
            thinned = [replace(each, wheels=tuple(found)) for each, found in zip(thinned, asked, strict=True)]
    lock = Lock(
        requires_python=f">={min(spec.python, key=_number)}",
        packages=tuple(thinned),
        asked=digest_of(spec),
        installer=installer.result(),
    )
    builds = cuda_builds(lock)
    if builds:
        raise TpuctlError(
            f"environment {spec.name} resolves to builds for NVIDIA's devices: {', '.join(builds[:3])}",
            hint=cuda_hint(builds),
        )
    return lock


def find_python(minor: str) -> Wheel | None:
    """A CPython that uv knows for Linux, with the sha256 of its archive; None where it cannot be fetched.

    uv's list names the newest build first; `UV_PYTHON_INSTALL_MIRROR` leads to a mirror, as for uv itself.
    """
    done = _uv("python", "list", minor, "--only-downloads", "--output-format", "json")
    rows = [row for row in json.loads(done.stdout or "[]") if row.get("implementation") == "cpython"]
    fitting = [row for row in rows if row["arch"] == "x86_64" and row["libc"] == "gnu" and row["url"]]
    mirror = os.environ.get("UV_PYTHON_INSTALL_MIRROR", "").rstrip("/")
    for row in fitting[:1]:
        url = str(row["url"])
        if mirror:
            url = f"{mirror}/{'/'.join(url.split('/')[-2:])}"
        try:
            return Wheel(url.rpartition("/")[2].replace("%2B", "+"), url, *digest_of_url(url))
        except (OSError, urllib.error.URLError):
            return None
    return None


def digest_of_url(url: str) -> tuple[str, int]:
    """sha256 and size of what is there, read to its end. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with open_address(url, 60.0) as answer:
        while piece := answer.read(1 << 20):
            digest.update(piece)
            size += len(piece)
    return digest.hexdigest(), size


def _sized(wheel: Wheel) -> Wheel:
    """With the size that its place tells; hosts are asked for so much room. A folder tells none."""
    if not wheel.url.startswith("https://"):
        return wheel
    try:
        asked = urllib.request.Request(wheel.url, method="HEAD")  # noqa: S310 - https, see above
        with open_address(asked, 30.0) as answer:
            return replace(wheel, size=int(answer.headers.get("Content-Length") or 0))
    except OSError as error:
        raise UnreachableError(f"{wheel.name} cannot be asked for its size: {error}") from error


def _installer(spec: EnvironmentSpec) -> Wheel:
    (package,) = [each for each in _compile(spec, (UV,)) if each.name == "uv"]
    fitting = [wheel for wheel in package.wheels if wheel_rank(wheel.name, spec.python[0])]
    if not fitting:
        raise TpuctlError("the package index has no uv for Linux on x86_64")
    return fitting[0]


def _compile(spec: EnvironmentSpec, requirements: Sequence[str]) -> Sequence[LockedPackage]:
    if not requirements:
        return ()
    with tempfile.TemporaryDirectory(prefix="tpuctl-lock-") as folder:
        asked, made = Path(folder) / "requirements.in", Path(folder) / f"pylock.{spec.name}.toml"
        left_out = Path(folder) / "excludes.txt"
        asked.write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
        left_out.write_text("".join(f"{name}\n" for name in spec.exclude), encoding="utf-8")
        several = len(spec.python) > 1
        where = ["--universal"] if several else ["--python-platform", GLIBC]
        done = _uv(
            *("pip", "compile", "--quiet", "--generate-hashes", "--only-binary", ":all:", "--no-header"),
            *("--no-annotate", "--python-version", min(spec.python, key=_number), *where),
            *(
                "--excludes",
                str(left_out),
                "--torch-backend",
                "cpu",
                "--format",
                "pylock.toml",
                "--output-file",
                str(made),
            ),
            *(word for url in spec.indexes for word in ("--index", url)),
            *(word for place in spec.find_links for word in ("--find-links", place)),
            str(asked),
        )
        if done.returncode != 0:
            raise _failure(spec, done.stderr)
        return parse_lock(made.read_text(encoding="utf-8"), spec.name).packages


def _failure(spec: EnvironmentSpec, said: str) -> TpuctlError:
    text = "\n".join(line for line in said.strip().splitlines() if not line.startswith("warning:"))
    if any(word in text for word in ("error sending request", "Failed to fetch", "Could not connect")):
        own = [url for url in (*spec.indexes, *spec.find_links) if (urlsplit(url).hostname or url) in text]
        mirror = "a mirror: export UV_DEFAULT_INDEX=https://HOST/simple"
        return UnreachableError(
            f"environment {spec.name} cannot be resolved, an index does not answer:\n{text}",
            hint=f"is {own[0]}, which it names, reachable from here?"
            if own
            else f"is this machine online? {mirror}",
        )
    return TpuctlError(f"environment {spec.name} does not resolve:\n{text}", hint="change its requirements")


def _thinned(package: LockedPackage, minors: Sequence[str]) -> LockedPackage:
    """Without wheels that no host could use. ARM stays, for machines on which somebody rehearses."""
    kept = [
        wheel
        for wheel in package.wheels
        if any(wheel_rank(wheel.name.replace("aarch64", "x86_64"), minor) for minor in minors)
    ]
    return replace(package, wheels=tuple(kept or package.wheels))


@cache
def _find_uv() -> str:
    import uv

    return uv.find_uv_bin()


def _uv(*words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "UV_NO_PROGRESS": "1"}
    environ.pop("VIRTUAL_ENV", None)
    environ.setdefault("UV_SYSTEM_CERTS", "1")
    try:
        return subprocess.run(
            [_find_uv(), "--no-config", "--color", "never", *words],
            capture_output=True,
            text=True,
            env=environ,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnreachableError(
            f"uv did not end within {TIMEOUT_S:.0f} s", hint="a package index may be slow; try again"
        ) from error
    except OSError as error:
        raise TpuctlError(f"uv cannot be started: {error}", hint="python -m pip install uv") from error


def _number(minor: str) -> int:
    return int(minor.partition(".")[2])


def lock_environment(name: str, folder: Path, *, python: bool) -> tuple[PinnedEnvironment, Lock, list[str]]:
    """Resolves the environment `name`; with `python` also an interpreter for hosts. Returns what was read, the
    lock, and what a person should know. The lock is checked by the version table before it is returned.

    Raises what `read_environment` and `resolve_environment` do.
    """
    found = read_environment(name, folder, locked=False)
    spec, notes = found.spec, [each.message for each in found.complaints]
    if spec.unmanaged is not None:
        raise UsageError(
            f"environment {name} is unmanaged: its digest is in its file, and there is nothing to lock",
            hint=f"tpuctl env apply {name}",
        )
    lock = resolve_environment(spec)
    if python and spec.python_archive is None and len(spec.python) == 1:
        interpreter = find_python(spec.python[0])
        lock = replace(lock, python=interpreter)
        if interpreter is None:
            notes.append(
                f"no interpreter could be fetched, so hosts need Python {spec.python[0]} themselves; "
                "python_archive: names one of yours"
            )
    notes += check_lock(found, lock)
    return found, lock, notes
