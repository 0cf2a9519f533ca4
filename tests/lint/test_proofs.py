"""Bad samples, run: what the rules say of them happens under a real JAX and a real PyTorch/XLA on the CPU."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.jax_python import jax_python
from tests.support.require import require_torch_xla
from tests.support.session import ROOT
from tpuctl.lint.lint import lint_files
from tpuctl.lint.project import LintTarget
from tpuctl.lint.rules import load_rules

PROOFS = ROOT / "tests" / "data" / "lint_proofs"
RULES = {rule.code: rule for rule in load_rules()}
soak = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(900)]
TORCH: dict[str, Any] = {
    "bad_TPU301": "AttributeError: module 'torch' has no attribute 'xla'",
    "good_TPU301": True,
    "bad_TPU302": True,
    "bad_TPU305": "RuntimeError: Found no NVIDIA driver",
    "bad_TPU307": "KeyError: 'xla'",
    "good_TPU307": [3.0] * 4,
    "bad_TPU308": "AttributeError: module 'torch_xla.core.xla_model' has no attribute 'xrt_world_size'",
    "bad_TPU402": True,
    "good_TPU402": False,
    "bad_TPU409": "ValueError: Unsupported nprocs (8)",
    "bad_TPU412": "ValueError: ProcessGroupNCCL is only supported with GPUs",
}
"""What each returns, or the words of its error."""
MORE = ("TPU107", "TPU201", "TPU202", "TPU204")
"""How often is compiled, or how often four steps are run: more often than need be."""
JAX: dict[str, Any] = {
    "bad_JAX702": "ImportError: cannot import name 'host_callback'",
    "bad_JAX703": "AttributeError: module 'jax' has no attribute 'tree_map'",
    "bad_JAX704": "ConcretizationTypeError",
    "good_JAX704": [0, 1, 2, 3],
    "bad_JAX705": True,
    "good_JAX705": False,
    "bad_JAX707": True,
    "good_JAX707": False,
}


@pytest.mark.parametrize("name", ["with_torch_xla", "with_jax"])
def test_the_rules_find_what_is_run_as_bad_and_not_what_is_run_as_good(name: str) -> None:
    path = PROOFS / f"{name}.py"
    report = lint_files([path], load_rules(), LintTarget(), PROOFS)
    functions = [each for each in ast.parse(path.read_text()).body if isinstance(each, ast.FunctionDef)]
    for each in functions:
        kind, _, code = each.name.partition("_")
        inside = {f.code for f in report.findings if each.lineno <= f.line <= (each.end_lineno or 0)}
        if kind == "bad":
            assert code in inside, each.name
        if kind == "good":
            assert code not in inside, each.name
    bad = {each.name for each in functions if each.name.startswith("bad_")}
    assert bad <= {*TORCH, *JAX, *(f"bad_{code}" for code in MORE)}


def run(python: str, program: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PJRT_DEVICE": "CPU", "JAX_PLATFORMS": "cpu", **variables}
    command = [python, *(("-c", program) if "\n" in program else (str(PROOFS / program),)), *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)


def check(results: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        if isinstance(value, str):
            assert value in str(results[name]), name
        else:
            assert results[name] == value, name


@pytest.fixture(scope="module")
def torch_python() -> str:
    return require_torch_xla()


@pytest.fixture(scope="module")
def python_of_jax() -> Iterator[Path]:
    with jax_python() as python:
        yield python


class TestTorch:
    pytestmark = soak

    def test_bad_samples_wait_compile_grow_or_fail(self, torch_python: str) -> None:
        counted = [f"{kind}_{code}" for code in MORE for kind in ("bad", "good")]
        done = run(torch_python, "with_torch_xla.py", *TORCH, *counted)
        results = json.loads(done.stdout.splitlines()[-1])
        check(results, TORCH)
        for code in MORE:
            assert results[f"bad_{code}"] > results[f"good_{code}"], code

    def test_every_name_that_is_said_to_be_gone_is_gone(self, torch_python: str) -> None:
        names = list(RULES["TPU308"].removed)
        done = run(torch_python, GONE, *names)
        assert json.loads(done.stdout.splitlines()[-1]) == []

    def test_the_device_is_taken_before_launch(self, torch_python: str) -> None:
        sample = ROOT / "tests" / "data" / "lint" / "TPU408"
        bad = run(torch_python, str(sample / "bad.py"))
        assert "RuntimeError: Runtime is already initialized" in bad.stderr

    def test_a_variable_takes_bits_from_every_float(self, torch_python: str) -> None:
        program = "import torch, torch_xla\nprint((torch.tensor(1 + 2**-10).to('xla') * 1).cpu().item())"
        assert float(run(torch_python, program).stdout.split()[-1]) > 1
        assert float(run(torch_python, program, XLA_USE_BF16="1").stdout.split()[-1]) == 1


class TestJax:
    pytestmark = soak

    def test_bad_samples_wait_or_fail(self, python_of_jax: Path) -> None:
        done = run(str(python_of_jax), "with_jax.py", *JAX)
        check(json.loads(done.stdout), JAX)

    def test_every_name_that_is_said_to_be_gone_is_gone(self, python_of_jax: Path) -> None:
        gone = {**RULES["JAX702"].removed, **RULES["JAX703"].removed}
        newer = [name for name, row in gone.items() if row.since.startswith("0.11")]
        done = run(str(python_of_jax), GONE, *gone)
        assert json.loads(done.stdout.splitlines()[-1]) == newer

    def test_variables_are_read_at_the_import(self, python_of_jax: Path) -> None:
        program = (
            "import jax\nimport os\nos.environ['JAX_ENABLE_X64'] = '1'\nprint(jax.numpy.arange(1.0).dtype)"
        )
        assert run(str(python_of_jax), program).stdout.strip() == "float32"
        assert run(str(python_of_jax), program, JAX_ENABLE_X64="1").stdout.strip() == "float64"

    def test_a_flag_of_libtpu_in_xla_flags_ends_it(self, python_of_jax: Path) -> None:
        flag = "--xla_tpu_enable_latency_hiding_scheduler=true"
        done = run(str(python_of_jax), "import jax\nprint(jax.numpy.ones(1) + 1)", XLA_FLAGS=flag)
        assert done.returncode != 0
        assert f"Unknown flag in XLA_FLAGS: {flag}" in done.stderr


GONE = """
import importlib, json, sys
def is_there(name):
    try:
        importlib.import_module(name)
        return True
    except ImportError:
        owner, _, last = name.rpartition(".")
        try:
            return hasattr(importlib.import_module(owner), last)
        except ImportError:
            return False
print(json.dumps([name for name in sys.argv[1:] if is_there(name)]))
"""
"""Prints which of these names are there."""
