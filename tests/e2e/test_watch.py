"""Passes at the same time: one recovery, and nothing twice."""

from __future__ import annotations

import threading

from tests.support.jobs import bring_up
from tests.support.services import sim_services
from tests.support.sim import running_sim
from tpuctl.model.records import SliceState
from tpuctl.state.repository import get_slice
from tpuctl.watch.reconciler import run_pass


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
