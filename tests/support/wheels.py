"""Tiny real wheels, and projects with environments of them: what a test installs without a network."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import uv

from tpuctl.envs.lock import Lock, LockedPackage, Wheel, render_lock

MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"


def make_wheel(folder: Path, name: str, version: str, files: Mapping[str, str] | None = None) -> Path:
    """A wheel with these files, as a build tool would make it."""
    info = f"{name}-{version}.dist-info"
    held = {
        **(files or {f"{name}.py": f"VERSION = '{version}'\n"}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in held.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text)}\n"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**held, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            archive.writestr(zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0)), text)
    return wheel


def installer_wheel(folder: Path, *, whole: bool = False) -> Path:
    """uv as its wheel has it, made of the one that is installed here: a script that starts that one, unless the
    `whole` of it is asked for, or hosts cannot reach it. To bring 40 MB to each host is not what tests ask."""
    wheel = folder / "uv-0.13-py3-none-manylinux_2_17_x86_64.whl"
    program = Path(uv.find_uv_bin())
    open_ = program.stat().st_mode & 0o005 == 0o005 and all(p.stat().st_mode & 0o001 for p in program.parents)
    reached = open_ and not program.is_relative_to("/tmp")
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        if reached and not whole:
            archive.writestr("uv-0.13.data/scripts/uv", f'#!/bin/sh\nexec "{program}" "$@"\n')
        else:
            archive.write(program, "uv-0.13.data/scripts/uv")
        for name, text in {
            "METADATA": "Metadata-Version: 2.1\nName: uv\nVersion: 0.13\n",
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-manylinux_2_17_x86_64\n",
            "RECORD": "",
        }.items():
            archive.writestr(f"uv-0.13.dist-info/{name}", text)
    return wheel


def make_python_archive(path: Path) -> str:
    """The Python that runs this, as an archive without what tests do not need; its sha256."""
    base = Path(sys.base_prefix)
    skipped = {"test", "site-packages", "__pycache__", "idlelib", "tkinter", "ensurepip", "dist-packages"}

    def wanted(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = Path(item.name).name
        return None if name in skipped or name.startswith(("config-", "libpython3")) else item

    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        archive.add(os.path.realpath(sys.executable), "python/bin/python3")
        for library in (base / "lib").glob(f"libpython{MINOR}.so*"):
            archive.add(library, f"python/lib/{library.name}")
        archive.add(base / "lib" / f"python{MINOR}", f"python/lib/python{MINOR}", filter=wanted)
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Project:
    """A directory with environments in `envs/`; wheels lie beside them."""

    def __init__(self, root: Path, *, whole_installer: bool = False) -> None:
        self.envs = root / "envs"
        self.wheels = self.envs / "wheels"
        self.wheels.mkdir(parents=True)
        self.installer = self._wheel(installer_wheel(self.wheels, whole=whole_installer))

    def _wheel(self, path: Path) -> Wheel:
        content = path.read_bytes()
        place = f"wheels/{path.name}"
        return Wheel(path.name, place, hashlib.sha256(content).hexdigest(), len(content))

    def add(
        self,
        name: str,
        packages: Mapping[str, str],
        more: str = "",
        files: Mapping[str, str] | None = None,
        backend: str = "cpu",
    ) -> Lock:
        """Environment `name` with packages {name: version}; `more` is text of its file. Each package is a
        module of its name, or has `files`."""
        lines = [f"name: {name}", f"backend: {backend}", f'python: "{MINOR}"', "requirements:"]
        lines += [f"  - {package}=={version}" for package, version in packages.items()]
        (self.envs / f"{name}.yaml").write_text("\n".join([*lines, more]) + "\n")
        locked = tuple(
            LockedPackage(package, version, (self._wheel(make_wheel(self.wheels, package, version, files)),))
            for package, version in packages.items()
        )
        lock = Lock(f">={MINOR}", locked, installer=self.installer)
        self.write(name, lock)
        return lock

    def write(self, name: str, lock: Lock) -> None:
        (self.envs / f"pylock.{name}.toml").write_text(render_lock(lock))

    def damage_hash(self, name: str, lock: Lock) -> None:
        """The lock says another sha256 for the first wheel."""
        first = lock.packages[0]
        wrong = replace(first.wheels[0], sha256="0" * 64)
        self.write(name, replace(lock, packages=(replace(first, wheels=(wrong,)), *lock.packages[1:])))
