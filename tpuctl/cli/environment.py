"""Finds and freezes the pinned environment that a run names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tpuctl.errors import NotFoundError

FOLDER = Path("manifests") / "env"
SHIPPED = ("demo-cpu",)


def load_environment(name: str, cwd: Path) -> bytes:
    """The frozen form of `manifests/env/NAME.yaml` below `cwd`, else of the one that tpuctl ships.

    Raises NotFoundError or BadManifestError.
    """
    import yaml

    from tpuctl.core.environment import parse_environment, render_frozen

    read = _reader(name, cwd)
    data = yaml.safe_load(read(f"{name}.yaml"))
    python = data.get("python", {}) if isinstance(data, dict) else {}
    files = python.values() if isinstance(python, dict) else []
    locks = {str(file): read(str(file)).decode() for file in files}
    return render_frozen(parse_environment(data, locks))


def _reader(name: str, cwd: Path) -> Callable[[str], bytes]:
    if (cwd / FOLDER / f"{name}.yaml").is_file():
        return lambda file: (cwd / FOLDER / file).read_bytes()
    if name in SHIPPED:
        from tpuctl.resources import read_manifest

        return lambda file: read_manifest(f"env/{file}")
    raise NotFoundError(
        f"no environment called {name}", hint=f"write {FOLDER / name}.yaml, or use one of: {', '.join(SHIPPED)}"
    )
