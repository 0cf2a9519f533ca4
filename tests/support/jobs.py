"""Slices and runs for scenario tests, in a line each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from tests.support.builders import a_bundle
from tests.support.hosts import wait_until
from tests.support.services import SimServices
from tpuctl.model.cloud import Tier
from tpuctl.model.records import LifetimeLimits, RunRecord, SliceRecord
from tpuctl.model.run_spec import RestartPolicy, RunSpec
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.provenance.parts import load_manifest
from tpuctl.runs.follow import follow_run
from tpuctl.runs.request import request_run
from tpuctl.runs.submit import check_request, freeze_run
from tpuctl.slices.desired import request_slice
from tpuctl.slices.reconcile import wait_for_slice
from tpuctl.state.repository import get_slice
from tpuctl.transfer.tree import make_tree
from tpuctl.watch.heartbeat import PassLine
from tpuctl.watch.reconciler import run_pass

SPEC = SliceSpec("v4-16", "us-central2-b", Tier.SPOT, "tpu-ubuntu2204-base", hosts=2, chips=8)


def bring_up(services: SimServices, name: str, **spec: Any) -> SliceRecord:
    """A slice of two hosts, ready."""
    wanted = replace(SPEC, **spec)
    request_slice(services, name, wanted, pay=False, admit=lambda: None)
    deadline = services.clock.now() + 3600
    return wait_for_slice(services, name, deadline=deadline)


def limit(
    services: SimServices, name: str, *, ttl_s: float | None = None, idle_s: float | None = None
) -> SliceRecord:
    """What another `up` of a slice with limits does."""
    spec = get_slice(services, name).record.spec
    limits = LifetimeLimits(ttl_s=ttl_s, idle_s=idle_s)
    return request_slice(services, name, spec, pay=False, limits=limits, admit=lambda: None)


def submit(services: SimServices, slice_name: str, program: str, **request: Any) -> RunRecord:
    """A run of `program` as main.py on all workers, written down but not stepped yet."""
    values: dict[str, Any] = {
        "policy": RestartPolicy(max_failures=0, grace_s=1.0),
        "variables": {},
        "secrets": {},
        "no_checkpoint": True,
        **request,
    }
    asked = RunSpec(slice_name, ("python3", "main.py"), ".", **values)
    check_request(services, asked)
    code = a_bundle(make_tree({"main.py": program.encode()}))
    return request_run(services, freeze_run(services, services.ids.new_id(), asked, code))


def run_to_end(services: SimServices, slice_name: str, program: str, **request: Any) -> RunRecord:
    run = submit(services, slice_name, program, **request)
    return follow_run(services, run.id, deadline=services.clock.now() + 3600)


def pass_until(services: SimServices, wanted: Callable[[], bool], *, passes: int = 60) -> list[PassLine]:
    """Passes a minute apart until `wanted`; the lines of the last one."""
    for _ in range(passes):
        lines = run_pass(services)
        if wanted():
            return lines
        services.clock.sleep(60.0)
    raise AssertionError(f"it never happened: {lines}")


def attempt_row(services: SimServices, run_id: str, number: int) -> dict[str, Any]:
    """What the manifest of a run says of one attempt."""
    rows = load_manifest(services, run_id)["attempts"]
    return next(row for row in rows if row["number"] == number)


def meanwhile(services: SimServices, run: RunRecord, act: Callable[[], object]) -> RunRecord:
    """Follows a run to its end; once all workers have said a word, `act` is done."""

    def work() -> None:
        wait_until(lambda: all(services.logs.size(run.id, 1, worker, "stdout") for worker in (0, 1)), 60.0)
        act()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        return follow_run(services, run.id, deadline=services.clock.now() + 7200)
    finally:
        thread.join()
