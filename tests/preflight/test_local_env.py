"""The packages of an environment on this machine, and that tpuctl itself needs none of them."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.session import ROOT
from tests.support.wheels import Project
from tpuctl.envs.load import pin, read_environment
from tpuctl.errors import TpuctlError
from tpuctl.preflight.local_env import MARK, ensure_interpreter

FRAMEWORKS = {"flax", "jax", "jaxlib", "libtpu", "numpy", "optax", "orbax", "safetensors", "torch", "torch_xla"}


@pytest.mark.slow
def test_a_wheel_that_this_machine_cannot_have_is_named_and_nothing_counts_as_installed(tmp_path: Path) -> None:
    project = Project(tmp_path)
    lock = project.add("other", {"glimmer": "1.0"})
    [package] = lock.packages
    [wheel] = package.wheels
    foreign = wheel.name.replace("py3-none-any", "cp311-cp311-win_amd64")
    (project.wheels / wheel.name).rename(project.wheels / foreign)
    moved = replace(wheel, name=foreign, url=f"wheels/{foreign}")
    project.write("other", replace(lock, packages=(replace(package, wheels=(moved,)),)))
    with pytest.raises(TpuctlError) as caught:
        ensure_interpreter(pin(read_environment("other", project.envs)), tmp_path / "made", lambda _: None)
    assert "environment other cannot be installed on this machine" in caught.value.message
    assert "glimmer" in caught.value.message
    assert "--python FILE" in (caught.value.hint or "")
    assert list((tmp_path / "made").rglob(MARK)) == []


@pytest.mark.slow
def test_tpuctl_itself_imports_no_framework() -> None:
    """Programs in processes of their own do: modules of the agent, and templates."""
    for path in (ROOT / "tpuctl").rglob("*.py"):
        if "agent" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not {name.partition(".")[0] for name in names} & FRAMEWORKS, path
