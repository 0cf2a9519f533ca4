"""What is known of versions: pairs that go together, releases that are bad, flags that came and went.

The table is `manifests/tables/versions.yaml`. It knows less than the binaries: flags are asked of the pinned
libtpu itself where there is one (`flags.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpuctl.envs.spec import Backend, EnvironmentSpec
from tpuctl.lib.text import suggest

if TYPE_CHECKING:
    from packaging.version import Version

_EPATH_GCS = re.compile(r"etils\[([\w-]+,)*epath-gcs(,[\w-]+)*\]==", re.IGNORECASE)
"""The extra that brings gcsfs, which only a lock names."""


@dataclass(frozen=True)
class Complaint:
    """Something wrong with the versions of an environment. `key` is the one in the file; not `refused`: it is
    said, and goes on."""

    key: str
    message: str
    hint: str | None = None
    refused: bool = True


class VersionTable:
    """The table, by package."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data

    def row(self, package: str, version: str) -> Mapping[str, Any] | None:
        """What is known of one release; the local part of a version (`+cpu`) does not count."""
        public = version.partition("+")[0]
        rows = self._data.get(package.replace("-", "_"), ())
        return next((row for row in rows if row["version"] == public), None)

    @property
    def known_bad(self) -> Sequence[Mapping[str, Any]]:
        return tuple(self._data["known_bad"])

    @property
    def flags(self) -> Sequence[Mapping[str, Any]]:
        return tuple(self._data["flags"])

    def cache_never_loads(self, versions: Mapping[str, str]) -> bool:
        """Whether a compile cache of these packages is written and never read."""
        row = self._data["compile_cache_never_loads"]
        version = versions.get(row["package"])
        return version is not None and "+git" not in version and is_within(version, row["versions"])


def check_versions(
    table: VersionTable, spec: EnvironmentSpec, versions: Mapping[str, str], generations: Sequence[str]
) -> list[Complaint]:
    """All that is known to be wrong with an environment: `versions` are its packages, normalised names;
    `generations` are those that exist."""
    return [
        *_generations(spec, generations),
        *_known_bad(table, spec, versions),
        *_pairs(table, spec, versions),
        *_pythons(table, spec, versions),
        *_flags(table, spec, versions.get("libtpu")),
        *_cache(table, spec, versions),
    ]


def required_versions(spec: EnvironmentSpec) -> dict[str, str]:
    """{package: version} of those requirements that hold for every Python."""
    from tpuctl.envs.lock import normal

    found = {}
    for requirement in spec.requirements:
        if ";" in requirement:
            continue
        name, _, version = requirement.partition("==")
        found[normal(name.partition("[")[0])] = version.strip()
    return found


def check_slice(spec: EnvironmentSpec, generation: str) -> Complaint | None:
    """Whether an environment is for this generation of TPUs."""
    if not spec.generations or generation in spec.generations or spec.backend is Backend.CPU:
        return None
    listed = ", ".join(spec.generations)
    return Complaint("generations", f"environment {spec.name} is for {listed}, not for {generation}")


def _generations(spec: EnvironmentSpec, known: Sequence[str]) -> list[Complaint]:
    found = []
    for name in spec.generations:
        if name not in known:
            near = suggest(name, known)
            guess = f"; did you mean {near!r}?" if near else ""
            found.append(
                Complaint("generations", f"{name!r} is no generation{guess}", f"one of: {', '.join(known)}")
            )
    return found


def _known_bad(table: VersionTable, spec: EnvironmentSpec, versions: Mapping[str, str]) -> list[Complaint]:
    found = []
    for row in table.known_bad:
        version = versions.get(row["package"])
        if version is None or not is_within(version, row["versions"]):
            continue
        meant = set(row.get("generations", ())) & set(spec.generations or row.get("generations", ()))
        if row.get("generations") and not meant:
            continue
        if row.get("python") and not set(row["python"]) & set(spec.python):
            continue
        text = f"{row['package']} {version} is known to be bad: {row['why']} ({row['source']})"
        found.append(Complaint("requirements", text, "another version", refused=row.get("refuse", True)))
    return found


def _pairs(table: VersionTable, spec: EnvironmentSpec, versions: Mapping[str, str]) -> list[Complaint]:
    """torch_xla and torch_tpu work with one release of torch each; pip does not know that."""
    found = []
    torch = versions.get("torch")
    for name in ("torch-xla", "torch-tpu"):
        version = versions.get(name)
        row = table.row(name, version) if version is not None else None
        if row is None or version is None:
            continue
        takes = [row["torch"]] if isinstance(row["torch"], str) else list(row["torch"])
        if torch is None:
            text = f"{name} {version} needs torch {_or(takes)}, and does not say so itself"
            found.append(Complaint("requirements", text, f"torch=={takes[-1]}"))
        elif torch.partition("+")[0] not in takes and "+git" not in version:
            text = f"{name} {version} goes with torch {_or(takes)}, not with {torch}: importing it fails"
            found.append(Complaint("requirements", text, f"torch=={takes[-1]}"))
    if spec.backend is Backend.TORCH_XLA and "torch-xla" not in versions:
        found.append(Complaint("requirements", "the backend is torch_xla, and torch-xla is not required"))
    if spec.backend is Backend.TORCH_TPU and "torch-tpu" not in versions:
        found.append(Complaint("requirements", "the backend is torch_tpu, and torch-tpu is not required"))
    if spec.backend is Backend.JAX and "jax" not in versions:
        found.append(Complaint("requirements", "the backend is jax, and jax is not required"))
    if spec.backend is not Backend.CPU and "libtpu" not in versions:
        text = f"the backend is {spec.backend}, and libtpu is not required: it would run on the CPU"
        found.append(Complaint("requirements", text, _libtpu_hint(table, versions)))
    return found


def _libtpu_hint(table: VersionTable, versions: Mapping[str, str]) -> str | None:
    for name in ("torch-xla", "jax"):
        row = table.row(name, versions[name]) if name in versions else None
        if row is not None and row.get("libtpu"):
            wanted = str(row["libtpu"])
            return f"libtpu{wanted}" if "=" in wanted else f"libtpu=={wanted}"
    return None


def _pythons(table: VersionTable, spec: EnvironmentSpec, versions: Mapping[str, str]) -> list[Complaint]:
    """Pythons for which there is no wheel."""
    found = []
    for name in ("jax", "libtpu", "torch-xla", "torch-tpu"):
        row = table.row(name, versions[name]) if name in versions else None
        for minor in spec.python if row is not None and "python" in row else ():
            python = row["python"]  # type: ignore[index]
            if isinstance(python, str) and not is_within(f"{minor}.0", python):
                text = f"{name} {versions[name]} needs Python {python}, not {minor}"
                found.append(Complaint("python", text, f'python: "{python.lstrip(">=")}"'))
            elif not isinstance(python, str) and minor not in python:
                text = f"{name} {versions[name]} has wheels for Python {_or(python)}, not for {minor}"
                found.append(Complaint("python", text, f'python: "{python[-1]}"'))
    return found


def _flags(table: VersionTable, spec: EnvironmentSpec, libtpu: str | None) -> list[Complaint]:
    found = []
    for key, variable, flags in (
        ("libtpu_flags", "LIBTPU_INIT_ARGS", spec.libtpu_flags),
        ("xla_flags", "XLA_FLAGS", spec.xla_flags),
    ):
        for flag in flags:
            row = next((row for row in table.flags if row["flag"] == flag.partition("=")[0]), None)
            belongs = row.get("variable", "LIBTPU_INIT_ARGS") if row else None
            if row is not None and belongs != variable:
                other = "xla_flags" if belongs == "XLA_FLAGS" else "libtpu_flags"
                found.append(Complaint(key, f"{flag}: {row['why']}", f"{other}: [{flag}]"))
            elif row is not None and libtpu and "accepted" in row and not is_within(libtpu, row["accepted"]):
                found.append(Complaint(key, f"libtpu {libtpu} refuses {flag}: {row['why']}"))
            elif row is None and variable == "XLA_FLAGS" and flag.startswith("--xla_tpu_"):
                text = f"{flag} is a flag of libtpu: in XLA_FLAGS it ends the program at its first compilation"
                found.append(Complaint(key, text, f"libtpu_flags: [{flag}]"))
    return found


def _cache(table: VersionTable, spec: EnvironmentSpec, versions: Mapping[str, str]) -> list[Complaint]:
    known = {*versions, *(("gcsfs",) if any(_EPATH_GCS.match(each) for each in spec.requirements) else ())}
    lacking = [each for each in ("etils", "gcsfs") if each not in known]
    if spec.compile_cache.startswith("gs://") and lacking:
        text = f"JAX reads and writes gs:// with etils[epath-gcs], and {lacking[0]} is not required"
        return [
            Complaint(
                "compile_cache", text, 'requirements: ["etils[epath-gcs]==1.13.0"], or compile_cache: disk'
            )
        ]
    if spec.compile_cache == "off" or not table.cache_never_loads(versions):
        return []
    text = f"torch-xla {versions['torch-xla']} writes a compile cache and never loads it (pytorch/xla#9094)"
    return [Complaint("compile_cache", text, "compile_cache: off", refused=False)]


def is_within(version: str, wanted: str) -> bool:
    """Whether a version is one of those that are wanted, such as `>=0.0.21,<0.0.41`."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(wanted, prereleases=True).contains(_parsed(version))
    except InvalidVersion:
        return False


def _parsed(version: str) -> Version:
    from packaging.version import Version

    return Version(version.partition("+")[0])


def _or(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
