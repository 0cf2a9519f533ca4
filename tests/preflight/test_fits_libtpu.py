"""Steps that the real libtpu compiles here, where no TPU is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.jax_python import flax_packages, tpu_jax
from tests.support.session import ROOT
from tests.support.soak import soak
from tpuctl.cli.commands.fits import LIBRARIES
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.preflight.fits import Fit, StepFunction, compile_for
from tpuctl.preflight.local_env import LocalPython
from tpuctl.preflight.topologies import find_topology, mesh_for, parse_mesh

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(900)]
PROGRAM = ROOT / "tests" / "data" / "preflight" / "decoder.py"
CATALOG = load_accelerators()


@pytest.fixture(scope="module")
def interpreter() -> LocalPython:
    return LocalPython(tpu_jax(), {})


def fit(interpreter: LocalPython, function: str, name: str, mesh: str = "", file: Path = PROGRAM) -> Fit:
    topology = find_topology(CATALOG, name)
    axes = mesh_for(parse_mesh(mesh) if mesh else {}, topology)
    return compile_for(StepFunction(file, function), topology, axes, interpreter, {}, timeout_s=400)


@pytest.mark.parametrize(
    "name",
    [
        "v6e-8",
        *(soak(each, id=each) for each in ("v4-8", "v5e-8", "v5p-8", "v6e-1", "v6e-16", "v6e-256", "tpu7x-8")),
    ],
)
def test_a_sharded_decoder_fits(interpreter, name):
    found = fit(interpreter, "step", name)
    assert found.fits, found.problem
    assert found.peak_bytes is not None
    assert found.argument_bytes is not None
    assert found.argument_bytes < found.peak_bytes < found.hbm_bytes
    assert found.flops == STEP
    assert not found.not_counted
    if found.devices > 1:
        gathered = found.devices <= BATCH  # else the batch lies on each device whole, and products are added up
        assert ("all-gather" if gathered else "all-reduce") in {each.kind for each in found.collectives}
    assert {each.what for each in found.buffers if each.argument} <= {"params['up']", "params['down']", "batch"}
    assert found.buffers or found.devices >= 16, "small parts of a small model are not worth a line"


LAYERS, WIDTH, HIDDEN, BATCH = 4, 512, 2048, 32
TOKENS = BATCH * 256
PRODUCT = 2 * LAYERS * TOKENS * WIDTH * HIDDEN
STEP = (2 + 1 + 4) * PRODUCT
"""Of decoder.py, with two products a layer: forwards, the first again for the checkpoint, backwards twice."""


@pytest.mark.soak
def test_a_scan_has_the_operations_of_its_layers_written_out(interpreter):
    scanned, unrolled = (fit(interpreter, name, "v6e-8") for name in ("step", "unrolled"))
    assert scanned.flops == unrolled.flops == STEP
    assert scanned.fits
    assert unrolled.fits


def test_what_does_not_fit_says_the_compilers_figure(interpreter):
    found = fit(interpreter, "too_large", "v5e-8")
    assert found.fits is False
    assert "GiB for temporaries alone, of 15.8" in found.problem


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (
            "indivisible",
            "argument params['up'] of shape [4, 512, 2049]: dimension 2 of 2049 does not divide by 2, ",
        ),
        ("inside", "nope"),
        soak("two_things", "it has to return three things"),
        soak("wrong_axis", "argument batch: the mesh has no axis 'modle', only data, model"),
        soak("raises", "RuntimeError: no such data set"),
        soak("nothing", "there is no function nothing"),
        soak("no_shape", "argument batch has no shape"),
    ],
)
def test_what_cannot_be_compiled_is_told_with_its_line(interpreter, function, problem):
    found = fit(interpreter, function, "v6e-8", "data=4,model=2")
    assert found.fits is None
    assert problem in found.problem
    text = PROGRAM.read_text(encoding="utf-8").splitlines()
    if function != "nothing":
        assert f"# {function}" in "\n".join(text[found.line - 1 : found.line + 1]), found.line


@pytest.mark.soak
def test_state_that_is_not_donated_is_a_warning(interpreter):
    found = fit(interpreter, "not_donated", "v6e-8")
    assert found.fits
    assert any("nothing is donated" in warning for warning in found.warnings)


WHOLE = {"step": 272_629_760, "optax": 809_549_828, "nnx": 6_447_628_296, "maxtext": 12_889_096_200}
"""Bytes of the arguments of each file, by the sizes that it begins with."""


@pytest.mark.parametrize(
    ("name", "mesh"), [("step", ""), *((each, "") for each in LIBRARIES[:2]), ("maxtext", "fsdp=*,tensor=2")]
)
def test_the_files_that_are_written_to_start_from_fit(interpreter, name, mesh):
    packages = {"PYTHONPATH": str(flax_packages())} if name != "step" else {}
    with_them = LocalPython(interpreter.python, packages)
    found = fit(with_them, "step", "v6e-8", mesh, file=ROOT / "templates" / f"fits_{name}.py")
    assert found.fits, found.problem
    assert not found.warnings
    assert found.argument_bytes < WHOLE[name] / 8 * 1.01, "not all is spread over the devices"
