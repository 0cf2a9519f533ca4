"""Pinned environments for tests, from the packages that they shall hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tpuctl.envs.lock import Lock, LockedPackage, Wheel, render_lock
from tpuctl.envs.pinned import PinnedEnvironment
from tpuctl.envs.spec import Backend, EnvironmentSpec, InstallFrom


def make_pinned(packages: Mapping[str, tuple[str, str]], minor: str = "3.11", **spec: Any) -> PinnedEnvironment:
    """An environment of pure packages: {name: (version, sha256)}."""
    locked = tuple(
        LockedPackage(name, version, (_wheel(name, version, digest),))
        for name, (version, digest) in packages.items()
    )
    values = {
        "name": "test",
        "backend": Backend.CPU,
        "python": (minor,),
        "install_from": InstallFrom.INDEX,
        **spec,
    }
    return PinnedEnvironment(EnvironmentSpec(**values), render_lock(Lock(f">={minor}", locked)))


def _wheel(name: str, version: str, digest: str) -> Wheel:
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return Wheel(file, f"https://packages.example/{file}", digest)
