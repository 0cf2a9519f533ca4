"""`run --check`: parameters that a real JAX drew, in a TrainState that is made as Flax makes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jax_python import jax_python
from tests.support.session import Session, open_session

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]
TRAIN = """\
import jax
from flax.training.train_state import TrainState
draw = jax.nn.initializers.lecun_normal()
params = {f"layer_{i}": draw(jax.random.key(min(i, 2)), (64, 64)) for i in range(4)}
TrainState.create(params=params)
print("trained")
"""
TRAIN_STATE = """\
class TrainState:
    def __init__(self, params):
        self.params = params

    @classmethod
    def create(cls, **named):
        return cls(**named)
"""
RUN = ("run", "--on", "big", "--no-checkpoint", "--var", "JAX_PLATFORMS=cpu")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as opened:
        (opened.work / "train.py").write_text(TRAIN)
        (opened.work / "flax" / "training").mkdir(parents=True)
        (opened.work / "flax" / "training" / "train_state.py").write_text(TRAIN_STATE)
        opened.type("up", "v4-8", "big", "--spot", "--pay")
        yield opened


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    with jax_python() as made:
        yield made


def test_a_doubled_layer_is_said_and_ends_only_a_strict_run(session: Session, python: Path) -> None:
    command = ("--", str(python), "train.py")
    done = session.type(*RUN, "--name", "said", "--check", "weights", *command, within_s=400)
    assert "tpuctl: weights: error layer_3: the same values as layer_2" in done.stdout + done.stderr
    assert "trained" in done.stdout
    [row] = session.json("manifest", "said")["attempts"][-1]["hosts"]
    assert row["weights"] == "4 leaves: error layer_3: the same values as layer_2: one random key for both?"

    done = session.type(*RUN, "--name", "ended", "--check", "strict", *command, status=None, within_s=400)
    assert done.returncode
    assert "trained" not in done.stdout
    found = session.json("manifest", "ended")
    assert len(found["attempts"]) == 1, "it is not started again"
    assert found["attempts"][0]["failure"]["signature"] == "bad-weights"
    assert found["command"]["check"] == "strict"


def test_a_program_whose_parameters_nobody_saw_did_not_pass(session: Session) -> None:
    done = session.type(*RUN, "--name", "unseen", "--check", "strict", "--", "true")
    assert "--check: its parameters were not looked at: no optimizer of PyTorch took a step" in done.stderr
    [row] = session.json("manifest", "unseen")["attempts"][-1]["hosts"]
    assert row["weights"].startswith("not looked at")


def test_what_it_may_be_is_told(session: Session) -> None:
    assert "--check 'loose' is unknown" in session.type(*RUN, "--check", "loose", "train.py", status=2).stderr
