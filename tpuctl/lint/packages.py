"""Packages that a program imports: read out of their wheels, nothing of which is unpacked or run."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from tpuctl.errors import BadManifestError
from tpuctl.lint.files import FILE_LIMIT, MAX_FILES, ModuleFinder
from tpuctl.lint.lint import without_collector
from tpuctl.lint.module import UnreadableError
from tpuctl.lint.project import Finding, Target, find_all
from tpuctl.lint.rules import Rule, Severity
from tpuctl.lint.summary import Summary, summarize

FRAMEWORKS = frozenset({"torch", "torch-xla", "torch-tpu", "jax", "jaxlib", "libtpu", "numpy", "torchvision"})
"""Packages that are the backend itself, and bring code for every device."""


def lint_wheel(label: str, wheel: Path, rules: Sequence[Rule], target: Target) -> list[Finding]:
    """One warning for each rule, with how often and where first. Whether the program reaches that is not known.

    Raises BadManifestError for what is no wheel.
    """
    summaries: dict[str, Summary] = {}
    try:
        with zipfile.ZipFile(wheel) as archive, without_collector():
            for item in archive.infolist()[:MAX_FILES]:
                if not item.filename.endswith(".py") or item.file_size > FILE_LIMIT or _of_tests(item.filename):
                    continue
                try:
                    key = f"/{item.filename}"
                    summaries[key] = summarize(f"{label}/{item.filename}", archive.read(item), rules)
                except UnreadableError:
                    continue  # for another Python; what counts is what this one would import
    except zipfile.BadZipFile as error:
        raise BadManifestError(f"{wheel.name} of {label} is no wheel: {error}") from error
    found = find_all(summaries, rules, target, ModuleFinder("", summaries.__contains__))
    return _first_of_each(found)


def _of_tests(name: str) -> bool:
    return any(part in ("tests", "test", "testing") or part.startswith("test_") for part in name.split("/"))


def _first_of_each(findings: Sequence[Finding]) -> list[Finding]:
    by_code: dict[str, list[Finding]] = {}
    for each in findings:
        by_code.setdefault(each.code, []).append(each)
    found = []
    for same in by_code.values():
        rest = f"; {len(same) - 1} more in this package" if len(same) > 1 else ""
        found.append(replace(same[0], severity=Severity.WARNING, message=f"{same[0].message}{rest}"))
    return found
