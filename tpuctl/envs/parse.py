"""Reads an environment file that is YAML already, and says what it says against itself. Pure."""

from __future__ import annotations

import re

from tpuctl.config.schema import Decoder, Problem
from tpuctl.config.yaml_positions import Marked, MarkedMapping, Position
from tpuctl.envs.lock import normal
from tpuctl.envs.spec import Backend, EnvironmentSpec


def parse_environment(marked: Marked | None, name: str) -> tuple[EnvironmentSpec | None, list[Problem]]:
    """The environment that a file describes, and all that is wrong with it by itself. Without a problem there
    is an environment."""
    if not isinstance(marked, MarkedMapping):
        return None, [Problem(Position(1, 1), "must hold keys and values", f'name: {name}, python: "3.12", …')]
    decoder = Decoder()
    spec = decoder.decode(EnvironmentSpec, marked, "environment", Position(1, 1))
    if spec is None:
        return None, decoder.problems
    found = [
        Problem(marked.keys.get(where, Position(1, 1)), f"environment: {message}", hint)
        for where, message, hint in contradictions(spec, name)
    ]
    return spec, [*decoder.problems, *found]


def contradictions(spec: EnvironmentSpec, name: str) -> list[tuple[str, str, str | None]]:
    """What a file says against itself: (key, message, hint)."""
    found: list[tuple[str, str, str | None]] = []
    if spec.name != name:
        found.append(("name", f"its name is {spec.name}, and the file's is {name}", f"name: {name}"))
    if not spec.python:
        found.append(("python", "python names no version", 'python: "3.12"'))
    if spec.python_archive is not None and len(spec.python) > 1:
        found.append(("python_archive", "an archive goes with one version", f'python: "{spec.python[0]}"'))
    if spec.unmanaged is not None:
        changing = ("requirements", "files", "python_archive")
        found += [
            (
                each,
                f"{each} would change {spec.unmanaged.path}, which is unmanaged",
                f"keep {each} or unmanaged",
            )
            for each in changing
            if getattr(spec, each)
        ]
        if len(spec.python) > 1:
            found.append(("python", "what is unmanaged has one version", f'python: "{spec.python[0]}"'))
    asked = {normal(re.split(r"[\[=]", each)[0]) for each in spec.requirements}
    for each in spec.exclude:
        if normal(each) in asked:
            found.append(
                ("exclude", f"exclude has {each}, and so has requirements", f"keep {each} in one of them")
            )
    taken: set[str] = set()
    for file in spec.files:
        if file.to in taken:
            found.append(("files", f"two files go to {file.to}", None))
        taken.add(file.to)
    cache = spec.compile_cache
    if cache not in ("off", "disk") and not cache.startswith("gs://"):
        found.append(("compile_cache", f"compile_cache {cache!r} is no place", "gs://BUCKET/PATH, disk or off"))
    # What is not acted on is refused: a file must not promise it.
    if cache != "off" and spec.backend is Backend.TORCH_TPU:
        found.append(("compile_cache", "no compile cache of TorchTPU is known", 'compile_cache: "off"'))
    if cache.startswith("gs://") and spec.backend is Backend.TORCH_XLA:
        text = "PyTorch/XLA keeps compiled programs in a directory of the host only"
        found.append(("compile_cache", text, "compile_cache: disk"))
    for held, variable in (
        ("flag_profiles", "LIBTPU_INIT_ARGS"),
        ("libtpu_flags", "LIBTPU_INIT_ARGS"),
        ("xla_flags", "XLA_FLAGS"),
    ):
        if getattr(spec, held) and variable in spec.variables:
            found.append((held, f"{held} and the variable {variable} say the same", f"keep {held}"))
    return found
