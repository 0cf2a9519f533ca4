"""Finds the files of `templates/` and `manifests/`, installed or in a checkout; nobody else does.

Both folders are packages (`tpuctl.templates`, `tpuctl.manifests`), so importlib.resources finds either.
"""

from __future__ import annotations

import io
import zipfile
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

from tpuctl.errors import BugError

if TYPE_CHECKING:
    from tpuctl.model.accelerators import Catalog
    from tpuctl.model.error_table import ErrorTable
    from tpuctl.model.prices import OtherPrices
    from tpuctl.model.secret_patterns import SecretPatterns


def read_template(name: str) -> bytes:
    """The content of `templates/NAME`. Raises BugError: what tpuctl asks for, it ships."""
    return _read("tpuctl.templates", name)


@cache
def read_agent() -> bytes:
    """The agent as one file: a zip archive of `tpuctl/agent/` that Python runs as it is.

    Stored without compression or times, so that the same source has the same digest everywhere.
    """
    archive = io.BytesIO()
    folder = resources.files("tpuctl").joinpath("agent")
    files = {
        file.name: file.read_bytes()
        for file in sorted(folder.iterdir(), key=lambda item: item.name)
        if file.name.endswith(".py") and file.name != "__init__.py"  # that one makes it findable here
    }
    files["MODULES"] = "".join(f"{name}\n" for name in files).encode()  # see tpuctl/agent/install.py
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as bundle:
        for name, content in files.items():
            bundle.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return archive.getvalue()


def read_agent_module(name: str) -> bytes:
    """The content of `tpuctl/agent/NAME`, for a program that runs it elsewhere."""
    return _read("tpuctl", f"agent/{name}")


def find_manifest(name: str) -> bytes | None:
    """The content of `manifests/NAME`, or None where tpuctl ships none of that name."""
    path = resources.files("tpuctl.manifests").joinpath(*name.split("/"))
    return path.read_bytes() if path.is_file() else None


def list_manifests(folder: str) -> list[str]:
    """Names of the files in `manifests/FOLDER`."""
    return [item.name for item in resources.files("tpuctl.manifests").joinpath(folder).iterdir()]


def read_table(name: str) -> bytes:
    """The content of `manifests/tables/NAME`. Raises BugError."""
    return _read("tpuctl.manifests", f"tables/{name}")


@cache
def load_accelerators() -> Catalog:
    """Every accelerator type that tpuctl knows."""
    from tpuctl.model.accelerators import parse_catalog

    return parse_catalog(_load_yaml("accelerators.yaml"))


@cache
def load_other_prices() -> OtherPrices:
    """List prices of what a project holds besides TPUs."""
    from tpuctl.model.prices import OtherPrices

    return OtherPrices(_load_yaml("other_prices.yaml"))


@cache
def load_versions() -> Any:
    """The rows of `manifests/tables/versions.yaml`; `envs/rules.py` says what they mean."""
    return _load_yaml("versions.yaml")


@cache
def load_disk_rules() -> Any:
    """The rows of `manifests/tables/disks.yaml`; `disks/rules.py` says what they mean."""
    return _load_yaml("disks.yaml")


@cache
def load_mount_table() -> tuple[Any, Any]:
    """The rows of `manifests/tables/mounts.yaml`, and the options of each version of gcsfuse; `mounts/rules.py`
    says what they mean."""
    import json

    return _load_yaml("mounts.yaml"), json.loads(read_table("gcsfuse_flags.json"))


@cache
def load_secret_patterns() -> SecretPatterns:
    """What looks like a secret."""
    from tpuctl.model.secret_patterns import parse_patterns

    return parse_patterns(_load_yaml("secrets.yaml"))


@cache
def load_failure_table() -> Any:
    """The content of `manifests/tables/failures.yaml`; `runs/failure.py` says what it means."""
    return _load_yaml("failures.yaml")


@cache
def load_debug_profiles() -> Any:
    """The content of `manifests/tables/debug_profiles.yaml`; `runs/debug.py` says what it means."""
    return _load_yaml("debug_profiles.yaml")


@cache
def load_gke_table() -> Any:
    """The content of `manifests/tables/gke.yaml`; `kube/shape.py` says what it means."""
    return _load_yaml("gke.yaml")


@cache
def load_flag_profiles() -> Any:
    """The content of `manifests/tables/flag_profiles.yaml`; `envs/presets.py` says what it means."""
    return _load_yaml("flag_profiles.yaml")


@cache
def load_hang_table() -> Any:
    """The content of `manifests/tables/hangs.yaml`; `runs/triage.py` says what it means."""
    return _load_yaml("hangs.yaml")


@cache
def load_lint_rules() -> Any:
    """The content of `manifests/tables/lint_rules.yaml`; `lint/rules.py` says what it means."""
    return _load_yaml("lint_rules.yaml")


@cache
def load_sim_calls() -> Any:
    """The content of `manifests/tables/sim_calls.yaml`; `sim/wire/calls.py` says what it means."""
    return _load_yaml("sim_calls.yaml")


@cache
def load_sim_faults() -> Any:
    """The content of `manifests/tables/sim_faults.yaml`; `sim/world/faults.py` says what it means."""
    return _load_yaml("sim_faults.yaml")


@cache
def load_sim_storage() -> Any:
    """The content of `manifests/tables/sim_storage.yaml`; the files of `sim/gcs/` say what it means."""
    return _load_yaml("sim_storage.yaml")


@cache
def load_sim_compute() -> Any:
    """The content of `manifests/tables/sim_compute.yaml`; `sim/compute/catalog.py` says what it means."""
    return _load_yaml("sim_compute.yaml")


@cache
def load_error_table() -> ErrorTable:
    """What the messages of the Cloud TPU API mean."""
    from tpuctl.model.error_table import parse_error_table

    return parse_error_table(_load_yaml("errors.yaml"))


def _read(package: str, name: str) -> bytes:
    path = resources.files(package).joinpath(*name.split("/"))
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise BugError(f"{package} has no file {name}") from error


def _load_yaml(name: str) -> Any:
    """Through libyaml where PyYAML has it: 6 instead of 40 ms for the accelerators."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(read_table(name), Loader=loader)  # noqa: S506 (both loaders are the safe one)


def read_package() -> dict[str, bytes]:
    """Every file of the installed package, templates and manifests too, by its path in a wheel."""
    found: dict[str, bytes] = {}
    for package in ("tpuctl", "tpuctl.templates", "tpuctl.manifests"):
        _collect(resources.files(package), package.replace(".", "/"), found)
    return found


def _collect(folder: Traversable, prefix: str, found: dict[str, bytes]) -> None:
    for item in sorted(folder.iterdir(), key=lambda each: each.name):
        if item.is_file() and not item.name.endswith(".pyc"):
            found[f"{prefix}/{item.name}"] = item.read_bytes()
        elif item.is_dir() and item.name != "__pycache__":
            _collect(item, f"{prefix}/{item.name}", found)
