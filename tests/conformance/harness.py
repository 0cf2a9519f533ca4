"""Runs the clients of the conformance table, each against a simulator of its own, and says what they saw."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from uv import find_uv_bin

import tests.conformance
from tests.conformance.client import Check, Client
from tests.support import measured

TPUCTL = str(Path(sys.executable).with_name("tpuctl"))
PROGRAM, NPM, GO = "bin:", "npm:", "go:"
INSTALL_TIMEOUT_S = 1200.0
SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT_TIMEOUT_S = 600.0
KEPT = ("LANG", "PATH", "PIP_CERT", "PIP_FIND_LINKS", "PIP_INDEX_URL", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
"""Of this machine's environment, for pip."""
RAN = "it runs"
"""The one check of a client that could check nothing."""


@dataclass(frozen=True)
class Result:
    """What one client saw, on which day and at which revision. `missing`: why it was not run."""

    client: Client
    version: str
    checks: tuple[Check, ...] = ()
    missing: str = ""
    day: str = field(default_factory=measured.today)
    revision: str = field(default_factory=measured.revision)

    def save(self, folder: Path) -> None:
        """Keeps it for `find_result`."""
        folder.mkdir(parents=True, exist_ok=True)
        shown = {"requirements": self.client.requirements, "version": self.version, "day": self.day}
        shown["revision"] = self.revision
        checks = [asdict(each) for each in self.checks]
        text = json.dumps({**shown, "missing": self.missing, "checks": checks}, indent=1)
        _file(folder, self.client).write_text(text)


def find_result(client: Client, folder: Path) -> Result | None:
    """What the client saw when it ran last, if it was the version that is asked for today."""
    try:
        kept = json.loads(_file(folder, client).read_text())
    except FileNotFoundError:
        return None
    if kept["requirements"] != list(client.requirements):
        return None
    checks = tuple(Check(**each) for each in kept["checks"])
    return Result(client, kept["version"], checks, kept["missing"], kept["day"], kept.get("revision", ""))


def _file(folder: Path, client: Client) -> Path:
    return folder / f"{re.sub('[^a-z0-9]+', '-', client.name.lower()).strip('-')}.json"


def pinned_version(client: Client) -> str | None:
    """The version that is asked for; None of a program, which is there in whichever version it is."""
    first = client.requirements[0]
    if first.startswith(PROGRAM):
        return None
    return first.rpartition("@v" if first.startswith(GO) else "@" if first.startswith(NPM) else "==")[2]


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
    plain = _variables(env)
    return {**{name: value for name, value in env.items() if name not in plain}, **_variables(env, "--https")}


def _variables(env: Mapping[str, str], *options: str) -> dict[str, str]:
    command = [TPUCTL, "sim", "env", "--json", *options]
    shown = subprocess.run(command, env=dict(env), capture_output=True, check=True)
    return dict(json.loads(shown.stdout))


def run_script(script: str, env: Mapping[str, str], work: Path) -> list[Check]:
    """The checks of a script. Raises when it printed none."""
    done = subprocess.run(
        ["node" if script.endswith(".cjs") else "python", str(SCRIPTS / script)],
        env={**env, "CONFORMANCE_WORK": str(work)},
        cwd=work,
        capture_output=True,
        text=True,
        timeout=SCRIPT_TIMEOUT_S,
    )
    checks = [Check(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
    if not checks:
        raise RuntimeError(f"{script} ended with {done.returncode} and no check:\n{done.stderr[-2000:]}")
    if done.returncode:
        checks.append(Check("the program ends well", False, f"{done.returncode}: {done.stderr[-500:]}"))
    return checks


def by_both_ways(script: str, env: Mapping[str, str], work: Path) -> list[Check]:
    """The checks of a script with the variables of `tpuctl sim env`, and then of `sim env --https`."""
    plain = run_script(script, env, work)
    subprocess.run([TPUCTL, "sim", "reset"], env=dict(env), check=True, capture_output=True)
    (work / "https").mkdir()
    https = run_script(script, https_of(env), work / "https")
    return [*plain, *(replace(check, name=f"--https: {check.name}") for check in https)]


def version_here(client: Client) -> str | None:
    """The client's version where this interpreter's environment has all that it needs, for runs that install
    nothing; else None."""
    try:
        for text in client.requirements:
            if text.startswith((PROGRAM, NPM, GO)):
                return None
            wanted = Requirement(text)
            if wanted.extras or not wanted.specifier.contains(metadata.version(wanted.name), prereleases=True):
                return None  # what an extra brings is not looked up
    except metadata.PackageNotFoundError:
        return None
    return metadata.version(Requirement(client.requirements[0]).name)


def run_here(client: Client) -> Result:
    """One client with this interpreter's environment."""
    return _run(client, version_here(client) or "", Path(sys.prefix))


def run_apart(client: Client) -> Result:
    """One client in a virtual environment that is thrown away."""
    absent = [each for each in _programs(client) if shutil.which(each) is None]
    if absent:
        return Result(client, "", missing=f"needs {', '.join(absent)}")
    if client.hosts == "isolated" and os.geteuid() != 0:
        return Result(client, "", missing="needs root, for isolated hosts")
    with tempfile.TemporaryDirectory(prefix="tpuctl-conformance-") as folder:
        Path(folder).chmod(0o755)  # simulated hosts, which run as somebody else, may use it too
        packages = [each for each in client.requirements if not each.startswith((PROGRAM, NPM, GO))]
        venv = Path(folder) / "venv"
        # uv, as twenty environments with the same large packages cost pip most of an hour.
        uv = find_uv_bin()
        subprocess.run([uv, "venv", "--quiet", "--seed", "--python", sys.executable, str(venv)], check=True)
        if packages:
            install = [uv, "pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), *packages]
            subprocess.run(install, check=True, timeout=INSTALL_TIMEOUT_S)
        nodes = [each.removeprefix(NPM) for each in client.requirements if each.startswith(NPM)]
        if nodes:
            install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(venv), *nodes]
            subprocess.run(install, check=True, timeout=INSTALL_TIMEOUT_S)
        return _run(client, _version(client, venv), venv)


def _run(client: Client, version: str, venv: Path) -> Result:
    with _simulator(client.hosts, venv) as (env, work):
        try:
            return Result(client, version, tuple(client.run(env, work)))
        except Exception as error:  # noqa: BLE001 - whatever ends a client is a failed check
            traceback.print_exc()
            return Result(client, version, (Check(RAN, False, f"{type(error).__name__}: {error}"),))


def _programs(client: Client) -> list[str]:
    return [each.removeprefix(PROGRAM) for each in client.requirements if each.startswith(PROGRAM)]


def _version(client: Client, venv: Path) -> str:
    first = client.requirements[0]
    if first.startswith(GO):
        return pinned_version(client) or ""
    if first.startswith(NPM):
        package = venv / "node_modules" / first.removeprefix(NPM).rpartition("@")[0] / "package.json"
        return str(json.loads(package.read_text())["version"])
    if first.startswith(PROGRAM):
        shown = subprocess.run([first.removeprefix(PROGRAM), "--version"], capture_output=True, text=True)
        return next(found[1] for word in shown.stdout.split() if (found := re.fullmatch(r"v?(\d\S*)", word)))
    ask = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    command = [str(venv / "bin" / "python"), "-c", ask, Requirement(first).name]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def _simulator(hosts: str, venv: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """The environment and the empty folder of one client, with a simulator that waits for nothing."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-conformance-") as folder:
        root = Path(folder)
        work = root / "work"
        work.mkdir()
        env = {name: os.environ[name] for name in KEPT if name in os.environ}
        env.update(HOME=str(work), TPUCTL_STATE_DIR=str(root / "state"))
        env.update(
            VIRTUAL_ENV=str(venv), NODE_PATH=str(venv / "node_modules"), PATH=f"{venv / 'bin'}:{env['PATH']}"
        )
        subprocess.run(
            [TPUCTL, "sim", "up", "--instant", "--hosts", hosts], env=env, check=True, capture_output=True
        )
        try:
            yield {**env, **_variables(env)}, work
        finally:
            subprocess.run([TPUCTL, "sim", "down"], env=env, check=True, capture_output=True)
