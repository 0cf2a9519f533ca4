"""Runs the clients of the conformance table, each against a simulator of its own, and says what they saw."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

import tests.conformance
from tests.conformance.client import Check, Client

TPUCTL = str(Path(sys.executable).with_name("tpuctl"))
PROGRAM = "bin:"
INSTALL_TIMEOUT_S = 1200.0
KEPT = ("LANG", "PATH", "PIP_CERT", "PIP_FIND_LINKS", "PIP_INDEX_URL", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
"""Of this machine's environment, for pip."""


@dataclass(frozen=True)
class Result:
    """What one client saw. `missing`: why it was not run."""

    client: Client
    version: str
    checks: Sequence[Check] = ()
    missing: str = ""


def discover() -> list[Client]:
    """The clients of every module `clients_*` beside this one, by name."""
    modules = [each.name for each in pkgutil.iter_modules(tests.conformance.__path__, "tests.conformance.")]
    found = [
        client
        for name in modules
        if name.rpartition(".")[2].startswith("clients_")
        for client in importlib.import_module(name).CLIENTS
    ]
    return sorted(found, key=lambda client: client.name)


def https_of(env: Mapping[str, str]) -> dict[str, str]:
    """`env` as `tpuctl sim env --https` would have it."""
    shown = subprocess.run(
        [TPUCTL, "sim", "env", "--https", "--json"], env=env, capture_output=True, text=True, check=True
    )
    variables = json.loads(shown.stdout)
    named = [name for name in env if "EMULATOR" in name or "_OVERRIDES_" in name or name.endswith("_HTTP_URL")]
    return {**{name: value for name, value in env.items() if name not in named}, **variables}


def version_here(client: Client) -> str | None:
    """The client's version where this interpreter's environment has all that it needs, for runs that install
    nothing; else None."""
    try:
        for text in client.requirements:
            if text.startswith(PROGRAM):
                return None
            wanted = Requirement(text)
            if not wanted.specifier.contains(metadata.version(wanted.name), prereleases=True):
                return None
    except metadata.PackageNotFoundError:
        return None
    return metadata.version(Requirement(client.requirements[0]).name)


def run_here(client: Client) -> Result:
    """One client with this interpreter's environment."""
    with _simulator() as (env, work):
        return Result(client, version_here(client) or "", client.run(env, work))


def run_apart(client: Client) -> Result:
    """One client in a virtual environment that is thrown away."""
    absent = [each for each in _programs(client) if shutil.which(each) is None]
    if absent:
        return Result(client, "", missing=f"needs {', '.join(absent)}")
    with tempfile.TemporaryDirectory(prefix="tpuctl-conformance-") as folder:
        packages = [each for each in client.requirements if not each.startswith(PROGRAM)]
        venv = Path(folder) / "venv"
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        if packages:
            pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages]
            subprocess.run(pip, check=True, timeout=INSTALL_TIMEOUT_S)
        with _simulator(venv) as (env, work):
            return Result(client, _version(client, venv), client.run(env, work))


def _programs(client: Client) -> list[str]:
    return [each.removeprefix(PROGRAM) for each in client.requirements if each.startswith(PROGRAM)]


def _version(client: Client, venv: Path) -> str:
    first = client.requirements[0]
    if first.startswith(PROGRAM):
        shown = subprocess.run([first.removeprefix(PROGRAM), "--version"], capture_output=True, text=True)
        return next(word for word in shown.stdout.split() if word[0].isdigit())
    ask = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    command = [str(venv / "bin" / "python"), "-c", ask, Requirement(first).name]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def _simulator(venv: Path | None = None) -> Iterator[tuple[dict[str, str], Path]]:
    """The environment and the empty folder of one client, with a simulator that waits for nothing."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-conformance-") as folder:
        root = Path(folder)
        work = root / "work"
        work.mkdir()
        env = {name: os.environ[name] for name in KEPT if name in os.environ}
        env.update(HOME=str(work), TPUCTL_STATE_DIR=str(root / "state"))
        apart = {} if venv is None else {"VIRTUAL_ENV": str(venv), "PATH": f"{venv / 'bin'}:{env['PATH']}"}
        subprocess.run([TPUCTL, "sim", "up", "--instant"], env=env, check=True, capture_output=True)
        try:
            shown = subprocess.run([TPUCTL, "sim", "env", "--json"], env=env, capture_output=True, check=True)
            yield {**env, **apart, **json.loads(shown.stdout)}, work
        finally:
            subprocess.run([TPUCTL, "sim", "down"], env=env, check=True, capture_output=True)
