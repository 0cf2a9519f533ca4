"""A real JAX on isolated hosts that reach no package index: all of it comes through the wheelhouse in the
bucket, to the hosts of today and to those after a preemption."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.require import require_index, require_isolated_hosts
from tests.support.session import Session, open_session
from tests.support.wheels import MINOR

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

INSTALL_S = 400.0
INDEX = "https://pypi.org/simple/"


@pytest.fixture
def session() -> Iterator[Session]:
    require_isolated_hosts()
    require_index()
    with open_session("--instant", "--hosts", "isolated") as opened:
        yield opened


def test_jax_is_installed_run_and_brought_back_without_a_byte_from_the_registry(session: Session) -> None:
    hosts = 8
    session.type("env", "new", "train", "--like", "cpu", "--python", MINOR)
    session.environ["TPUCTL_WHEELHOUSE"] = "gs://sim-bucket/wheels"
    session.type("sim", "fault", "no-internet")
    session.type("up", "v4-64", "big", "--spot", "--pay", "--env", "train", within_s=INSTALL_S)
    curl = f"curl -sS -m 5 {INDEX} >/dev/null 2>&1 || echo cut off"
    reached = json.loads(session.type("exec", "--json", "big", "--", "sh", "-c", curl).stdout)
    said = {row["worker"]: row["stdout"] for row in reached}
    assert said == dict.fromkeys(range(hosts), "cut off\n")
    # A run of jax.distributed: a collective over the processes of all hosts.
    tested = session.type("smoke", "big", "--limit", "300", "--json", within_s=INSTALL_S)
    rows = json.loads(tested.stdout)
    assert [(row["worker"], row["backend"]) for row in rows] == [(worker, "cpu") for worker in range(hosts)]
    session.type("sim", "preempt", "big-1")
    session.type("up", "big", within_s=INSTALL_S)
    assert (
        f"{hosts} hosts of big are as train says"
        in session.type("env", "verify", "train", "--on", "big").stderr
    )
