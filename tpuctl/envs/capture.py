"""An environment file made from an interpreter that works on a host: its packages in their versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from tpuctl.engine.services import Services
from tpuctl.envs.lock import normal
from tpuctl.envs.spec import Backend, EnvironmentSpec, Unmanaged
from tpuctl.errors import PartialError, UsageError
from tpuctl.hosts.agent_link import AgentLink
from tpuctl.hosts.targets import host_targets
from tpuctl.lib.codec import parse_json
from tpuctl.model.hosts import HostTarget
from tpuctl.model.records import SliceRecord
from tpuctl.model.shipped_files import read_template

TIMEOUT_S = 300.0
"""For a host that reads all files of an environment: 5 GB, from a disk that gives 20 MB/s."""
TOOLS = frozenset({"pip", "setuptools", "wheel", "uv"})
"""What installs packages is no part of what programs need."""
MODULES = {Backend.TORCH_TPU: "torch_tpu", Backend.TORCH_XLA: "torch_xla", Backend.JAX: "jax"}
"""Backends by the module that programs import; the first one that is there counts, for they may need jax."""


class Captured(Struct, frozen=True):
    """`notes` are what a lock from the index will not have: packages that were installed from elsewhere."""

    spec: EnvironmentSpec
    notes: tuple[str, ...] = ()


def capture_environment(
    services: Services, record: SliceRecord, worker: int, python: str, name: str, *, unmanaged: bool = False
) -> Captured:
    """What the interpreter `python` (a path, or a name on PATH) of a worker has, as an environment file; with
    `unmanaged` the folder of that interpreter itself, with the digest of its files.

    Raises UsageError where there is no such worker or interpreter, PartialError where the host does not answer.
    """
    targets = host_targets(services, record)
    if not 0 <= worker < len(targets):
        raise UsageError(
            f"{record.name} has no worker {worker}", hint=f"--worker 0 to --worker {len(targets) - 1}"
        )
    host, probe = targets[worker], read_template("env_packages.py").decode()
    found = _ask(services, record, host, python, [python, "-I", "-B", "-c", probe])
    made = captured(name, found, f"as {python} on worker {worker} of {record.name} had it")
    if not unmanaged:
        return made
    path = found["prefix"]
    installer = read_template("env_install.py").decode()
    tree = _ask(services, record, host, path, ["python3", "-I", "-c", installer, "--tree", path])
    spec = replace(made.spec, requirements=(), unmanaged=Unmanaged(path, tree["sha256"]))
    return Captured(spec)


def _ask(services: Services, record: SliceRecord, host: HostTarget, what: str, argv: list[str]) -> Any:
    """The JSON that a program on a host prints; `what` is asked, for a person."""
    said = {"stdout": bytearray(), "stderr": bytearray()}
    agent = AgentLink(services.remote, services.agent_source)
    [result] = agent.session(
        [host], argv, lambda _, stream, data: said[stream].extend(data), timeout_s=TIMEOUT_S
    )
    where = f"worker {host.worker} of {record.name}"
    if result.failure is not None:
        raise PartialError(f"{where}: {result.detail or result.failure}", hint=f"tpuctl status {record.name}")
    try:
        return parse_json(bytes(said["stdout"]))
    except ValueError:
        why = said["stderr"].decode(errors="replace").strip().splitlines()[-1:] or [
            f"status {result.exit_status}"
        ]
        hint = f"tpuctl exec --worker {host.worker} {record.name} -- ls -l {what}"
        raise UsageError(f"{where}: {what} cannot be asked: {why[0]}", hint=hint) from None


def captured(name: str, found: Mapping[str, Any], description: str) -> Captured:
    """Pure: what the probe printed, as a specification."""
    packages = {
        normal(package): version
        for package, version in sorted(found["packages"].items())
        if normal(package) not in TOOLS
    }
    known = {package.replace("-", "_") for package in packages}
    backend = next((each for each, module in MODULES.items() if module in known), Backend.CPU)
    if "libtpu" not in packages:
        backend = Backend.CPU
    module = next((module for module in MODULES.values() if module in known), "")
    notes = tuple(
        f"{package} {found['packages'][package]} came from {source}: find_links says where its wheel is"
        for package, source in sorted(found["sources"].items())
    )
    spec = EnvironmentSpec(
        name=name,
        python=(str(found["python"]),),
        backend=backend,
        description=description,
        requirements=tuple(f"{package}=={version}" for package, version in packages.items()),
        imports=(module,) if module else (),
        verified=False,
    )
    return Captured(spec, notes)
