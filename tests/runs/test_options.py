"""An option of a run is declared once, and is from there wherever a run is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.builders import a_run
from tpuctl.config.settings import resolve
from tpuctl.lib.codec import from_data, to_data
from tpuctl.lib.options import registry
from tpuctl.model.run_spec import RunOptions, RunRequest, RunSpec
from tpuctl.provenance.build import build_start
from tpuctl.provenance.manifest import CommandSection
from tpuctl.runs.submit import resolve_run


@pytest.mark.parametrize("name", RunOptions.__struct_fields__)
def test_what_is_kept_as_it_was_written_is_in_record_and_manifest(name):
    value = registry(RunOptions)[name].examples[0]
    request = RunRequest(
        script="train.py", **{"progress": r"loss (?P<loss>\S+)", "container": "image:1", name: value}
    )
    spec = resolve_run(request, resolve([], Path("/nowhere")), "big", 1, ".", None)
    assert getattr(from_data(RunSpec, to_data(spec)), name) == value
    start = build_start(replace(a_run(), spec=spec), None, project="p", version="0")
    assert getattr(from_data(CommandSection, start["command"]), name) == value
