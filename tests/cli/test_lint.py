"""`tpuctl lint` as it is typed: what is printed where, and how it ends."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import Session
from tests.support.wheels import Project

BAD = "import torch\nimport torch_xla\ntorch.cuda.set_device(0)\n"
WARNED = "import os\nimport torch_xla\nos.environ['XLA_IR_DEBUG'] = '1'\n"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Without a simulator or a project: it needs none."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-lint-") as root:
        made = Session(Path(root))
        made.environ["TPUCTL_PROFILE"] = ""
        files = {"bad.py": BAD, "warned.py": WARNED, "good.py": "x = 1\n", "broken.py": "def\n"}
        for name, code in files.items():
            (made.work / name).write_text(code)
        yield made


def test_errors_end_with_1_and_warnings_with_0(session: Session) -> None:
    bad = session.type("lint", "bad.py", status=1)
    assert bad.stdout == "bad.py:3:1: error TPU305 torch.cuda.set_device fails on a TPU: it has no CUDA\n"
    assert "1 error and 0 warnings in 1 file" in bad.stderr
    warned = session.type("lint", "warned.py", "good.py")
    assert warned.stdout.startswith("warned.py:3:1: warning TPU507 XLA_IR_DEBUG ")
    assert session.type("lint", "warned.py", "--ignore", "TPU507").stdout == ""


def test_a_file_that_does_not_parse_is_said_and_changes_nothing(session: Session) -> None:
    done = session.type("lint", "good.py", "broken.py")
    assert done.stdout == ""
    assert "warning: broken.py was not read: line 1: invalid syntax" in done.stderr


def test_json_is_one_document_also_with_an_error(session: Session) -> None:
    done = session.type("lint", "--json", status=1)
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert [(each["path"], each["code"]) for each in found["findings"]] == [
        ("bad.py", "TPU305"),
        ("warned.py", "TPU507"),
    ]
    assert session.type("lint", "--output-format", "json", status=1).stdout == done.stdout
    sarif = json.loads(session.type("lint", "--output-format", "sarif", status=1).stdout)
    assert [each["ruleId"] for each in sarif["runs"][0]["results"]] == ["TPU305", "TPU507"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--output-format", "xml"), "--output-format 'xml' is unknown"),
        (("--backend", "cuda"), "--backend 'cuda' is unknown"),
        (("--select", "E501"), "--select: no rule has the code 'E501'"),
        (("--deps",), "--deps needs an environment"),
        (("notes.txt",), "there is no notes.txt"),
        (("--env", "nope"), "no environment called nope"),
    ],
)
def test_bad_input_is_refused(session: Session, words: tuple[str, ...], message: str) -> None:
    done = session.type("lint", *words, status=5 if words[-1] in ("notes.txt", "nope") else 2)
    assert message in done.stderr


def test_an_environment_tells_backend_and_versions(session: Session) -> None:
    """JAX code for another version, in a file that says nothing of its backend."""
    (session.work / "gone.py").write_text("import jax\njax.cloud_tpu_init\n")
    assert "JAX703" in session.type("lint", "gone.py", status=1).stdout
    assert session.type("lint", "gone.py", "--env", "jax-tpu-0-10").stdout == ""


def test_a_rule_is_explained(session: Session) -> None:
    said = session.type("lint", "--explain", "TPU409").stdout
    assert said.startswith("TPU409 number-of-processes (error; torch_xla)\n")
    assert "rewrite: leave `nprocs` out." in said


def test_packages_that_are_imported_are_read_from_the_environment(session: Session) -> None:
    """One line for each rule and package, as a warning; a package that nothing imports is not looked at."""
    code = {"lab/__init__.py": "import torch\n", "lab/place.py": "import torch\nx = torch.ones(1).cuda()\n"}
    Project(session.work).add("own", {"lab": "1.0", "unused": "1.0"}, files=code)
    (session.work / "use.py").write_text("import lab\nimport torch_xla\n")
    done = session.type("lint", "use.py", "--env", "own", "--deps")
    expected = "lab 1.0/lab/place.py:2:5: warning TPU305 .cuda() fails on a TPU: it has no CUDA\n"
    assert done.stdout == expected
