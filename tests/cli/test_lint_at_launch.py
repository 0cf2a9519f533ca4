"""What `run` and `apply` say of a program before it costs chips."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.require import require_index
from tests.support.session import Session, open_session

pytestmark = pytest.mark.slow
MODEL = "import jax\n\ndef spread(x):\n    return jax.device_put_replicated(x, jax.devices())\n"
TRAIN = "import sys\nif len(sys.argv) > 5:\n    import model\nprint('trained')\n"
RUN = ("run", "--on", "big", "--no-checkpoint", "--max-failures", "0")
FOUND = "model.py:4: JAX703 jax.device_put_replicated is gone since jax 0.10.0"
FLEET = """\
fleet:
  name: lab
  slices:
    big: {accelerator: v4-8, tier: spot, pay: true}
  runs:
    one: {on: big, script: train.py, no_checkpoint: true, lint: strict}
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as opened:
        (opened.work / "model.py").write_text(MODEL)
        (opened.work / "train.py").write_text(TRAIN)
        (opened.work / "other.py").write_text("import jax\njax.tree_map\n")
        opened.type("up", "v4-8", "big", "--spot", "--pay")
        yield opened


def test_errors_of_what_the_script_imports_are_said_and_it_goes_on(session: Session) -> None:
    done = session.type(*RUN, "--name", "warned", "train.py")
    assert f"warning: {FOUND}" in done.stderr
    assert "other.py" not in done.stderr
    assert "trained" in done.stdout


def test_strict_refuses_before_anything_is_written(session: Session) -> None:
    done = session.type(*RUN, "--name", "refused", "--lint", "strict", "train.py", status=2)
    assert FOUND.replace("4: ", "4:12: error ") in done.stderr
    assert "tpuctl lint --explain JAX703" in done.stderr
    assert [each["id"] for each in session.json("runs") if each["id"] == "refused"] == []
    assert session.type(*RUN, "--lint", "loose", "train.py", status=2).stderr.startswith(
        "error: --lint 'loose'"
    )


def test_off_and_what_ignores_it_are_silent(session: Session) -> None:
    assert "JAX703" not in session.type(*RUN, "--dry-run", "--lint", "off", "train.py").stderr
    (session.work / "pyproject.toml").write_text('[tool.tpuctl.lint]\nignore = ["JAX703"]\n')
    assert "JAX703" not in session.type(*RUN, "--dry-run", "--lint", "strict", "train.py").stderr
    (session.work / "pyproject.toml").unlink()


def test_a_fleet_file_says_it_too(session: Session) -> None:
    (session.work / "lab.yaml").write_text(FLEET)
    done = session.type("diff", "--file", "lab.yaml", status=2)
    assert "fleet.runs.one: lint: strict: 1 error in the code of the run" in done.stderr
    assert FOUND.replace("4: ", "4:12: error ") in done.stderr


def test_flags_that_end_a_program_are_refused(session: Session) -> None:
    flag = "XLA_FLAGS=--xla_tpu_enable_async_collective_fusion=true"
    done = session.type(*RUN, "--var", flag, "--dry-run", "train.py", status=2)
    assert "--xla_tpu_enable_async_collective_fusion in XLA_FLAGS ends the program" in done.stderr
    session.type(*RUN, "--var", "XLA_FLAGS=--xla_dump_to=/tmp/x", "--dry-run", "train.py")


def test_flags_of_debug_that_nobody_checks_are_told(session: Session) -> None:
    told = session.type(*RUN, "--debug", "nans", "--debug", "sdc", "--dry-run", "train.py").stderr
    assert "warning: --debug sdc: without a pinned environment its flags" in " ".join(told.split())
    assert "unchecked" not in session.type(*RUN, "--debug", "nans", "--dry-run", "train.py").stderr


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_flags_that_the_pinned_libtpu_does_not_have_are_refused(
    session: Session,
) -> None:
    require_index()  # 200 MB
    words = (*RUN, "--env", "jax-tpu-0-10", "--name", "flagged", "train.py")
    done = session.type(*words, "--var", "LIBTPU_INIT_ARGS=--xla_tpu_no_such=1", status=2, within_s=800)
    assert "error: --var: " in done.stderr
    assert "--xla_tpu_no_such=1" in done.stderr
    assert [each["id"] for each in session.json("runs") if each["id"] == "flagged"] == []
