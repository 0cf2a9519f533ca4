"""`tpuctl fits` and `tpuctl check weights` as typed, where no cloud is, with programs that bring no JAX."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pytest

from tests.support.jax_python import jax_python
from tests.support.session import ROOT, Session
from tests.support.soak import soak
from tpuctl.cli.commands.fits import LIBRARIES

pytestmark = [pytest.mark.slow]
HERE = ("--python", sys.executable)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Session:
    session = Session(tmp_path_factory.mktemp("fits"))
    del session.environ["TPUCTL_PROFILE"]
    return session


def test_a_file_to_start_from_is_written_once(typed):
    typed.type("fits", "--new", "step.py")
    assert (typed.work / "step.py").read_bytes() == (ROOT / "templates" / "fits_step.py").read_bytes()
    again = typed.type("fits", "--new", "step.py", status=2)
    assert "the file exists" in again.stderr


@pytest.mark.parametrize("name", LIBRARIES)
def test_one_for_a_library_is_too(typed, name):
    typed.type("fits", "--new", f"{name}.py", "--library", name)
    assert (typed.work / f"{name}.py").read_bytes() == (ROOT / "templates" / f"fits_{name}.py").read_bytes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name the function and the types"),
        (("step.py",), "name the function and the types"),
        (("nowhere.py", "--for", "v6e-8"), "there is no such file"),
        (("--new", "other.py", "--library", "haiku"), "there is no file for it"),
        (("own.py", "--for", "v6e-8", "--library", "nnx"), "--library goes with --new"),
        (("own.py:st ep", "--for", "v6e-8"), "no name of a function"),
        (("own.py", "--for", "v9-8"), "no accelerator type"),
        (("own.py", "--for", "v2-8"), "nothing can be compiled for v2"),
        (("own.py", "--for", "v6e-8", "--mesh", "data=3"), "does not divide the 8 devices"),
        (("own.py", "--for", "v6e-8", "--var", "no"), "is not K=V"),
        (("own.py", "--for", "v6e-8", "--python", "/nowhere/python"), "there is no such interpreter"),
        (("own.py", "--for", "v6e-8", "--env", "cpu"), "only JAX compiles for TPUs"),
    ],
)
def test_bad_input_is_refused_before_anything_is_done(typed, words, said):
    (typed.work / "own.py").write_text("def step():\n    raise SystemExit('called')\n")
    assert said in typed.type("fits", *words, status=2).stderr


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import nowhere\ndef step(): ...\n", "line 1: ModuleNotFoundError: No module named 'nowhere'"),
        ("def step(:\n", "line 1: SyntaxError"),
        ("import sys\nsys.exit('usage: train.py --config FILE')\n", "line 2: SystemExit: usage: train.py"),
        ("import os\nos._exit(7)\n", "the process ended with status 7"),
        (
            "import subprocess, time\nsubprocess.Popen(['sleep', '986'])\ntime.sleep(985)\n",
            "took longer than 3 s",
        ),
        ("print('hello')\ndef step(): ...\n", "No module named 'jax'"),
    ],
)
def test_a_file_that_does_something_else_ends_and_leaves_nothing(typed, program, said):
    (typed.work / "odd.py").write_text(program)
    limit = "3" if "time.sleep" in program else "60"
    done = typed.type("fits", "odd.py", "--for", "v6e-8", *HERE, "--timeout", limit, status=1)
    assert said in " ".join(done.stdout.split())
    assert "hello" not in done.stdout
    assert "986" not in os.popen("ps -eo args").read().split()


@pytest.mark.parametrize(
    ("words", "said", "status"),
    [
        (("nowhere",), "there is no such file or folder", 2),
        (("own.py",), "name the function", 2),
        (("own.py:init", "--init", "xavier"), "no such initialiser", 2),
        (("own.py:nothing",), "there is no function nothing", 1),
        (("own.py:init",), "line 2: SystemExit: called", 1),
        (("notes.txt",), "the environment lacks what reads this", 1),
    ],
)
def test_weights_that_cannot_be_read(typed, words, said, status):
    (typed.work / "own.py").write_text("def init():\n    raise SystemExit('called')\n")
    (typed.work / "notes.txt").write_text("no checkpoint\n")
    done = typed.type("check", "weights", *words, *HERE, status=status)
    assert said in " ".join(done.stderr.split())


MODEL = """
import jax, jax.numpy as jnp

def init(spoil=None, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(0), 12)
    draw = jax.nn.initializers.lecun_normal()
    zero = jnp.zeros(128, dtype)
    layers = {f"layer_{i}": {"kernel": draw(keys[i], (128, 128), dtype), "bias": zero} for i in range(6)}
    if spoil:
        layers["layer_3"]["kernel"] = spoil(layers)
    return layers

def good(): return init()
def good_bfloat16(): return init(dtype=jnp.bfloat16)
def truncated(): return jax.nn.initializers.truncated_normal(0.02)(jax.random.key(1), (512, 256), jnp.bfloat16)
def dead(): return init(lambda layers: layers["layer_3"]["kernel"] * 0)
def double(): return init(lambda layers: layers["layer_1"]["kernel"])
def small(): return init(lambda layers: layers["layer_3"]["kernel"] * 0.1)
def not_a_number(): return init(lambda layers: layers["layer_3"]["kernel"].at[0, 0].set(jnp.nan))
"""
SPOILT = {
    "dead": "all zeros",
    "double": "the same values as layer_1/kernel",
    "small": "is 0.1 of what the other 5 layers have",
    "not_a_number": "1 NaN and 0 infinite of 16384",
}


@pytest.fixture(scope="module")
def jax() -> Iterator[str]:
    with jax_python() as python:
        yield str(python)


@pytest.mark.long
@pytest.mark.parametrize(
    "function", ["good", "small", *map(soak, ("good_bfloat16", "truncated", "dead", "double", "not_a_number"))]
)
def test_bad_layers_of_a_real_model_are_found_and_good_ones_not(typed, jax, function):
    (typed.work / "model.py").write_text(MODEL)
    bad = function in SPOILT
    done = typed.type("check", "weights", f"model.py:{function}", "--python", jax, "--json", status=int(bad))
    found = [row for row in json.loads(done.stdout)["findings"] if row["level"] == "error"]
    assert [row["leaf"] for row in found] == (["layer_3/kernel"] if bad else [])
    assert not bad or SPOILT[function] in found[0]["what"]
