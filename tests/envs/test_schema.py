"""The published schema of environment files says what the reader of these files says."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.docs.schemas import environment_schema
from tpuctl.config.yaml_positions import parse_marked
from tpuctl.envs.parse import parse_environment
from tpuctl.envs.spec import (
    BuiltFrom,
    EnvironmentSpec,
    ExtraFile,
    KernelSettings,
    PythonArchive,
    Unmanaged,
)
from tpuctl.lib.options import registry

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("manifests/env/*.yaml"), *ROOT.glob("manifests/examples/envs/*.yaml")])
FILE = {"source": "gs://b/a", "to": "lib/a", "sha256": "a" * 64}
GOOD = {"name": "mine", "python": "3.12", "backend": "cpu"}


@cache
def validator() -> Any:
    jsonschema.Draft202012Validator.check_schema(environment_schema())
    return jsonschema.Draft202012Validator(environment_schema())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_that_we_ship_fits(path: Path) -> None:
    assert list(validator().iter_errors(yaml.safe_load(path.read_text()))) == []


@pytest.mark.parametrize(
    "change",
    [
        {"pyhton": "3.12"},
        {"python": None},
        {"backend": "cuda"},
        {"requirements": "jax==0.9.0"},
        {"files": [{**FILE, "sha": "x"}]},
        {"files": [{"source": "gs://b/a"}]},
        {"files": [{**FILE, "built_from": {"repo": "r"}}]},
        {"kernel": {"hugepages": "always"}},
        {"variables": ["A=b"]},
        {"verified": "no"},
    ],
)
def test_what_the_reader_refuses_by_its_shape_the_schema_refuses_too(change: dict[str, Any]) -> None:
    good = {**GOOD, "files": [FILE], "kernel": {"transparent_hugepages": "always"}, "variables": {"A": 1}}
    assert list(validator().iter_errors(good)) == []
    assert parse_environment(parse_marked(yaml.safe_dump(good), "mine.yaml"), "mine")[1] == []
    whole = {**GOOD, **change}
    assert parse_environment(parse_marked(yaml.safe_dump(whole), "mine.yaml"), "mine")[1]
    assert list(validator().iter_errors(whole))


@pytest.mark.parametrize(
    "shape", [EnvironmentSpec, ExtraFile, BuiltFrom, PythonArchive, Unmanaged, KernelSettings]
)
def test_each_key_has_its_meaning(shape: Any) -> None:
    schema = environment_schema()
    known = [schema, *schema["$defs"].values()]
    keys = next(each["properties"] for each in known if set(each["properties"]) == set(registry(shape)))
    for name, option in registry(shape).items():
        assert keys[name]["description"] == option.help
