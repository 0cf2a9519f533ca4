"""The wheel holds everything that a checkout holds, so that an installed tpuctl is the whole tpuctl."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_wheel_carries_agent_templates_and_manifests(tmp_path):
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(source)]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        f"tpuctl/{path.relative_to(source).as_posix()}"
        for folder in ("templates", "manifests")
        for path in (source / folder).rglob("*")
        if path.is_file()
    }
    wanted |= {path.relative_to(source).as_posix() for path in (source / "tpuctl" / "agent").glob("*.py")}
    assert wanted <= packed
    assert "tpuctl/py.typed" in packed
