"""Passes that are killed, and passes at the same time: one recovery, nothing twice, nothing left."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from tests.support.jobs import bring_up
from tests.support.services import sim_services
from tests.support.session import REAL_PACE, Session, open_session
from tests.support.sim import running_sim
from tests.support.soak import soak
from tpuctl.model.records import SliceState
from tpuctl.state.repository import get_slice
from tpuctl.watch.reconciler import run_pass


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session(*REAL_PACE) as session:
        yield session


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "when"), [soak(1, "after"), (3, "after"), *(soak(at, "after") for at in (6, 8, 10))]
)
def test_the_pass_after_a_killed_one_goes_on_and_creates_nothing_twice(
    session: Session, at: int, when: str
) -> None:
    name = f"k-{at}-{when}"
    session.type("up", "v4-8", name, "--spot", "--pay", "--zone", "us-central2-b")
    session.type("sim", "preempt", f"{name}-1")
    killed = 0
    for _ in range(20):
        done = session.type_killed(at, when, "watch", "once", "--every", "1")
        killed += done.returncode == -signal.SIGKILL
        if killed:
            break
    assert killed

    def back() -> bool:
        facts = session.json("status", name)
        return (facts["node"], facts["state"]) == (f"{name}-2", "ready")

    session.watch_until(back, "--every", "1")
    creates = [entry for entry in session.sim_journal() if entry["method"].endswith(".create")]
    assert len([e for e in creates if f"/{name}-2" in e["resource"] and e["status"] == "OK"]) == 1
    assert session.json("watch", "status")["health"] == "good"
    session.type("down", name, "--yes")


def test_passes_of_two_machines_at_the_same_time_recover_a_slice_once(tmp_path) -> None:
    with running_sim(tmp_path) as sim, sim_services(sim, tmp_path / "state") as first:
        bring_up(first, "big")
        sim.preempt("big-1")
        stop = threading.Event()
        failures: list[str] = []

        def passes(process: int) -> None:
            with sim_services(sim, tmp_path / "state", process=process) as services:
                services.machine = f"machine-{process}"
                services.process_alive = lambda _owner: True
                while not stop.is_set():
                    failures.extend(line.why for line in run_pass(services) if line.result == "failed")
                    record = get_slice(services, "big").record
                    # The first pass may only begin to doubt what it was told of the loss.
                    if record.state is SliceState.READY and record.last_incarnation > 1:
                        stop.set()
                    services.clock.sleep(5.0)

        threads = [threading.Thread(target=passes, args=(process,)) for process in (2, 3)]
        for thread in threads:
            thread.start()
        ended = stop.wait(60)
        stop.set()
        for thread in threads:
            thread.join()
        assert ended, "it never came back"
        assert failures == []
        assert get_slice(first, "big").record.incarnation.cloud_name == "big-2"
        creates = [entry for entry in sim.journal.entries() if entry.method.endswith("create")]
        assert [entry.resource.rpartition("/")[2] for entry in creates if entry.status == "OK"] == [
            "big-1",
            "big-2",
        ]
