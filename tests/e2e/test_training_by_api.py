"""A training program with a real JAX on two hosts, by either API: preempted twice, it ends like an unbroken
one, and nothing is left."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.e2e.test_training_examples import Followed
from tests.gcloud.test_real_gcloud import Gcloud
from tests.support.jax_python import VARIABLES, jax_python
from tests.support.require import require_tool
from tests.support.session import ROOT, Session, open_session
from tpuctl.sim.server import control

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.gcloud, pytest.mark.timeout(1800)]

SAVING = ("--var", "CHECKPOINT_EVERY=10")
HOLD = ("--var", "HOLD_AT=20")
"""Where the first attempt waits for its preemption; the second has 40 steps of a second for its own."""


def listed(session: Session, kinds: Iterable[str]) -> dict[str, list[str]]:
    """What the real gcloud lists of kinds, which are words of it; none of which there is nothing."""
    info = control.status(session.root / "state" / "sim")
    assert info is not None
    gcloud = Gcloud(info, session.root, require_tool("gcloud"))
    found = {}
    for kind in kinds:
        zone = ["--zone=us-central2-b"] if kind.startswith("tpus") else []
        said = gcloud.ok("compute", *kind.split(), "list", *zone, "--format=value(name)").split()
        if said:
            found[kind] = sorted(name.rpartition("/")[2] for name in said)
    return found


def group(name: str) -> dict[str, list[str]]:
    """All that a slice of two instances is made of."""
    hosts = [f"{name}-w-001", f"{name}-w-002"]
    own = {key: [name] for key in ("instance-groups managed", "instance-templates", "resource-policies")}
    return {**own, "instances": hosts, "disks": hosts}


@pytest.mark.parametrize(
    ("words", "part", "there"),
    [
        pytest.param(("v4-16",), (), {"tpus tpu-vm": ["big-3"]}, id="tpu"),
        pytest.param(
            ("tpu7x-16", "--api", "compute", "--zone", "us-central1-c"),
            ("--worker", "1"),
            group("big-3"),
            id="compute",
        ),
    ],
)
def test_a_run_whose_hosts_stop_and_then_vanish_ends_like_an_unbroken_one(
    words: Sequence[str], part: Sequence[str], there: dict[str, list[str]]
) -> None:
    with jax_python() as python, open_session("--instant") as session:
        session.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{session.environ['PATH']}"
        shutil.copy(ROOT / "templates" / "demo_train.py", session.work / "train.py")
        program = (*SAVING, *VARIABLES, "--", str(python), "train.py")
        session.type("up", *words, "big", "--spot", "--pay")

        unbroken = Followed(session, "unbroken", 0.0, program)
        result = unbroken.wait_for(r"final loss (.*)")
        assert unbroken.process.wait(timeout=60) == 0, unbroken.text()

        broken = Followed(session, "broken", 1.0, (*HOLD, *program))
        broken.wait_for(r"saved step 20\b")
        session.type("sim", "preempt", "big-1", *part)
        broken.wait_for(r"resumed from step \d+ \(attempt 2\)")
        session.type("sim", "fault", "preempt-deletes")
        session.type("sim", "preempt", "big-2")
        broken.wait_for(r"resumed from step \d+ \(attempt 3\)")
        assert broken.wait_for(r"final loss (.*)")[1] == result[1]
        assert broken.process.wait(timeout=60) == 0, broken.text()

        causes = [
            attempt["cause"]
            for number in (1, 2, 3)
            for attempt in session.json("manifest", "broken", "--attempt", str(number))["attempts"]
        ]
        assert causes == ["preempted", "preempted", "succeeded"]
        assert listed(session, there) == there
        session.type("down", "big", "--yes")
        assert listed(session, there) == {}
