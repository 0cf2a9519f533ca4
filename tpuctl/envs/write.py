"""Writes environment files: a new one, one derived from another, and locks."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import NODEFAULT
from msgspec.structs import fields, replace

from tpuctl.config.file import file_error
from tpuctl.config.yaml_positions import parse_marked
from tpuctl.envs.load import FOLDER, check_lock
from tpuctl.envs.lock import Lock, file_name, normal, render_lock
from tpuctl.envs.parse import parse_environment
from tpuctl.envs.pinned import PinnedEnvironment
from tpuctl.envs.spec import EnvironmentSpec, ExtraFile
from tpuctl.errors import ConflictError, UsageError
from tpuctl.lib.codec import to_data
from tpuctl.lib.output_files import check_output, write_output, write_output_text

_PLAIN = re.compile(r"[A-Za-z_/][\w./+:= -]*\Z")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "none"}
_NAME_OF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def render_environment(spec: EnvironmentSpec) -> str:
    """The file that says this, without what goes without saying."""
    lines: list[str] = []
    for field in fields(EnvironmentSpec):
        value = getattr(spec, field.name)
        default = field.default if field.default is not NODEFAULT else None
        if default is None and field.default_factory is not NODEFAULT:
            default = field.default_factory()
        if value == default and field.name not in ("backend",):
            continue
        data = to_data(value)
        if field.name == "python" and len(data) == 1:
            data = data[0]
        lines += _entry(field.name, data, 0)
    return "\n".join(lines) + "\n"


def _entry(name: str, value: Any, depth: int) -> list[str]:
    space = "  " * depth
    if isinstance(value, dict):
        inner = [
            line
            for key, each in value.items()
            if each not in (None, [], (), {})
            for line in _entry(key, each, depth + 1)
        ]
        return [f"{space}{name}:", *inner]
    if isinstance(value, list | tuple) and value and isinstance(value[0], dict):
        lines = [f"{space}{name}:"]
        for item in value:
            rows = [
                line for key, each in item.items() if each is not None for line in _entry(key, each, depth + 2)
            ]
            rows[0] = f"{space}  - {rows[0].lstrip()}"
            lines += rows
        return lines
    if isinstance(value, list | tuple):
        return [f"{space}{name}:", *(f"{space}  - {_scalar(item)}" for item in value)]
    return [f"{space}{name}: {_scalar(value)}"]


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    plain = _PLAIN.match(text) and ": " not in text and text.strip() == text and text.lower() not in _WORDS
    return text if plain and not text.endswith(":") else json.dumps(text, ensure_ascii=False)


def new_environment(base: PinnedEnvironment | None, spec: EnvironmentSpec) -> str:
    """The text of a new file, checked as it will be read. Raises BadConfigError and BadManifestError."""
    text = render_environment(spec)
    origin = str(FOLDER / f"{spec.name}.yaml")
    _, problems = parse_environment(parse_marked(text, origin), spec.name)
    if problems:
        raise file_error(origin, problems)
    check_lock(PinnedEnvironment(spec, text=text, origin=origin), None)
    head = [f"# Derived from {base.spec.name}."] if base is not None else []
    return "\n".join([*head, text])


def derive(
    base: EnvironmentSpec, name: str, *, versions: Sequence[str], files: Sequence[ExtraFile], **changes: Any
) -> EnvironmentSpec:
    """`base` with other versions (`X==1`, in the place of what it has of X) and more files."""
    found = {_package(line): line for line in base.requirements}
    for line in versions:
        found[_package(line)] = line
    kept = [each for each in base.files if each.to not in {file.to for file in files}]
    given = {key: value for key, value in changes.items() if value is not None}
    told = base.description if tuple(found.values()) == base.requirements and not files else ""
    return replace(
        base,
        name=name,
        description=told,
        requirements=tuple(found.values()),
        files=(*kept, *files),
        verified=False,
        **given,
    )


def _package(line: str) -> str:
    match = _NAME_OF.match(line)
    if match is None or "==" not in line:
        raise UsageError(f"{line!r} is not an exact version", hint="NAME==VERSION, such as jax==0.12.0.1")
    return normal(match.group(0))


def save_environment(folder: Path, name: str, text: str, *, replace_old: bool = False) -> Path:
    """Writes `NAME.yaml`, whole or not at all. Raises ConflictError where there is another."""
    path = check_output(folder / f"{name}.yaml", "", kind="environment", overwrite=True)
    if path.exists() and not replace_old and path.read_text(encoding="utf-8") != text:
        raise ConflictError(
            f"{path} is there already", hint=f"change it by hand, or choose another name than {name}"
        )
    write_output_text(path, "", text)
    return path


def save_lock(folder: Path, found: PinnedEnvironment, lock: Lock) -> Path:
    """Writes the lock beside its environment, which is copied along where it is one of tpuctl's."""
    name = found.spec.name
    if found.folder is None:
        save_environment(folder, name, found.text)
    path = check_output(folder / file_name(name), "", kind="lock", overwrite=True)
    write_output_text(path, "", render_lock(lock))
    return path


def copy_beside(folder: Path, name: str, source: Path) -> tuple[str, str]:
    """Copies a file into `envs/NAME.files/`, where the environment's file names it; returns that name and its
    sha256. Raises UsageError for what cannot be read."""
    target = check_output(folder / f"{name}.files" / source.name, "", kind="copy", overwrite=True)
    try:
        with source.open("rb") as file, write_output(target, "") as copy:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            shutil.copyfileobj(file, copy)
    except OSError as error:
        raise UsageError(f"cannot copy {source}: {error.strerror}", hint="--file DEST=SRC") from error
    return f"{name}.files/{source.name}", digest
