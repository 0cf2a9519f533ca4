"""A real JAX on isolated hosts that reach no package index: all of it comes through the wheelhouse in the
bucket, to the hosts of today and to those after a preemption."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.require import require_index, require_isolated_hosts
from tests.support.session import Session, open_session
from tests.support.soak import soak
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


@pytest.mark.parametrize("lost", ["small", soak("big")])
def test_jax_is_installed_run_and_brought_back_without_a_byte_from_the_registry(
    session: Session, lost: str
) -> None:
    """On eight hosts. The slice that is `lost` has one: to install JAX takes a host 12 s of a processor."""
    hosts = {"big": 8, "small": 1}
    session.type("env", "new", "train", "--like", "cpu", "--python", MINOR)
    session.environ["TPUCTL_WHEELHOUSE"] = "gs://sim-bucket/wheels"
    session.type("sim", "fault", "no-internet")
    session.type("up", "v4-64", "big", "--spot", "--pay", "--env", "train", within_s=INSTALL_S)
    curl = f"curl -sS -m 5 {INDEX} >/dev/null 2>&1 || echo cut off"
    reached = json.loads(session.type("exec", "--json", "big", "--", "sh", "-c", curl).stdout)
    said = {row["worker"]: row["stdout"] for row in reached}
    assert said == dict.fromkeys(range(hosts["big"]), "cut off\n")
    # A run of jax.distributed: a collective over the processes of all hosts.
    assert smoke(session, "big") == [(worker, "cpu") for worker in range(hosts["big"])]
    if lost == "small":
        session.type("up", "v4-8", "small", "--spot", "--pay", "--env", "train", within_s=INSTALL_S)
    session.type("sim", "preempt", f"{lost}-1")
    session.type("up", lost, within_s=INSTALL_S)
    assert f"of {lost} are as train says" in session.type("env", "verify", "train", "--on", lost).stderr
    assert smoke(session, lost) == [(worker, "cpu") for worker in range(hosts[lost])]


def smoke(session: Session, name: str) -> list[tuple[int, str]]:
    tested = session.type("smoke", name, "--limit", "300", "--json", within_s=INSTALL_S)
    return [(row["worker"], row["backend"]) for row in json.loads(tested.stdout)]
