"""Finds and freezes the pinned environment that a run names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tpuctl.errors import BadManifestError, NotFoundError
from tpuctl.lib.input_files import is_file, read_file

FOLDER = Path("manifests") / "env"
SHIPPED = ("demo-cpu",)
LOCK_LIMIT = 16 << 20
"""Bytes of an environment's files; a lock file with the hashes of 200 packages has 1 MB."""


def load_environment(name: str, cwd: Path) -> bytes:
    """The frozen form of `manifests/env/NAME.yaml` below `cwd`, else of the one that tpuctl ships.

    Raises NotFoundError or BadManifestError.
    """
    import yaml

    from tpuctl.envs.spec import parse_environment, render_frozen

    read = _reader(name, cwd)
    try:
        data = yaml.safe_load(read(f"{name}.yaml"))
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError) as error:
        told = " ".join(str(error).split())[:200]
        raise BadManifestError(f"{FOLDER / name}.yaml is not valid YAML: {told}") from error
    except OSError as error:
        raise BadManifestError(f"cannot read {FOLDER / name}.yaml: {error.strerror}") from error
    python = data.get("python", {}) if isinstance(data, dict) else {}
    files = python.values() if isinstance(python, dict) else []
    try:
        locks = {str(file): read(str(file)).decode() for file in files}
    except (OSError, UnicodeDecodeError) as error:
        raise BadManifestError(f"environment {name}: a lock file cannot be read: {error}") from error
    return render_frozen(parse_environment(data, locks))


def _reader(name: str, cwd: Path) -> Callable[[str], bytes]:
    if is_file(cwd / FOLDER / f"{name}.yaml"):
        return lambda file: read_file(cwd / FOLDER / file, LOCK_LIMIT)
    if name in SHIPPED:
        from tpuctl.model.data import read_manifest

        return lambda file: read_manifest(f"env/{file}")
    raise NotFoundError(
        f"no environment called {name}", hint=f"write {FOLDER / name}.yaml, or use one of: {', '.join(SHIPPED)}"
    )
