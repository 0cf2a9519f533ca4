"""An environment file made from an interpreter that works on a host: its packages in their versions."""

from __future__ import annotations

import json

from msgspec import Struct

from tpuctl.engine.services import Services
from tpuctl.envs.lock import normal
from tpuctl.envs.spec import Backend, EnvironmentSpec
from tpuctl.errors import PartialError, UsageError
from tpuctl.hosts.agent_link import AgentLink
from tpuctl.hosts.targets import host_targets
from tpuctl.model.records import SliceRecord

TIMEOUT_S = 60.0
TOOLS = frozenset({"pip", "setuptools", "wheel", "uv"})
"""What installs packages is no part of what programs need."""
MODULES = {Backend.TORCH_TPU: "torch_tpu", Backend.TORCH_XLA: "torch_xla", Backend.JAX: "jax"}
"""Backends by the module that programs import; the first one that is there counts, for they may need jax."""
PROBE = """
import importlib.metadata, json, platform
packages, sources = {}, {}
for each in importlib.metadata.distributions():
    name, url = each.metadata["Name"], each.read_text("direct_url.json")
    if name and name not in packages:
        packages[name] = each.version
        if url:
            sources[name] = json.loads(url).get("url", "")
minor = ".".join(platform.python_version_tuple()[:2])
print(json.dumps({"python": minor, "packages": packages, "sources": sources}))
"""


class Captured(Struct, frozen=True):
    """`notes` are what a lock from the index will not have: packages that were installed from elsewhere."""

    spec: EnvironmentSpec
    notes: tuple[str, ...] = ()


def capture_environment(
    services: Services, record: SliceRecord, worker: int, python: str, name: str
) -> Captured:
    """What the interpreter `python` (a path, or a name on PATH) of a worker has, as an environment file.

    Raises UsageError where there is no such worker or interpreter, PartialError where the host does not answer.
    """
    targets = host_targets(services, record)
    if not 0 <= worker < len(targets):
        raise UsageError(
            f"{record.name} has no worker {worker}", hint=f"--worker 0 to --worker {len(targets) - 1}"
        )
    said = {"stdout": bytearray(), "stderr": bytearray()}
    agent = AgentLink(services.remote, services.agent_source)
    [result] = agent.session(
        [targets[worker]],
        [python, "-I", "-c", PROBE],
        lambda _, stream, data: said[stream].extend(data),
        timeout_s=TIMEOUT_S,
    )
    where = f"worker {worker} of {record.name}"
    if result.failure is not None:
        raise PartialError(f"{where}: {result.detail or result.failure}", hint=f"tpuctl status {record.name}")
    try:
        found = json.loads(said["stdout"])
    except ValueError:
        why = said["stderr"].decode(errors="replace").strip().splitlines()[-1:] or [
            f"status {result.exit_status}"
        ]
        hint = f"tpuctl exec --worker {worker} {record.name} -- ls -l {python}"
        raise UsageError(f"{where}: {python} cannot be asked: {why[0]}", hint=hint) from None
    return captured(name, found, f"as {python} on {where} had it")


def captured(name: str, found: dict[str, dict[str, str]], description: str) -> Captured:
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
