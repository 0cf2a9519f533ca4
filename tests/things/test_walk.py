"""The walk of a thing on hosts, as the architecture page tells it: what it names is called, in that order."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.docs.test_walks import PAGE, hops_of
from tests.support.jobs import bring_up
from tests.support.memory.services import MemoryServices
from tpuctl.config.settings import Layer, resolve
from tpuctl.model.records import SliceState
from tpuctl.model.slice_spec import SliceRequest
from tpuctl.slices.bring_up import bring_up as bring_up_wanted
from tpuctl.slices.bring_up import preview_slice, request_wanted, resolve_wanted
from tpuctl.state.repository import get_slice

ROOT = Path(__file__).parents[2]
HEADING = "\n## The walk of a thing on hosts"
Call = tuple[str, str]


@contextmanager
def traced() -> Iterator[list[Call]]:
    """The functions of the package that this thread calls, in the order of the calls."""
    calls: list[Call] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{ROOT}/tpuctl/"):
            calls.append((code.co_filename.removeprefix(f"{ROOT}/"), code.co_name))

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def missing(steps: list[Call], calls: list[Call]) -> list[Call]:
    """The steps that were not taken, or not after those before them."""
    left = iter(calls)
    return [step for step in steps if step not in left]


def test_a_thing_on_hosts_goes_as_its_walk_says(services: MemoryServices) -> None:
    bring_up(services, "big")
    config = resolve([Layer("test", {})], Path("/nowhere"))
    request = SliceRequest(accelerator="big", mount=("gs://my-bucket:/mnt/data",))
    with traced() as calls:
        wanted = resolve_wanted(services, config, request, None, Path("/nowhere"))
        assert preview_slice(services, wanted) == "a mount at /mnt/data on the hosts of big"
        request_wanted(services, wanted)
        until = services.clock.now() + 3600
        bring_up_wanted(services, wanted, since=services.store.now(), wait=True, deadline=until)
    record = get_slice(services, "big").record
    assert (record.state, [each.path for each in record.spec.mounts]) == (SliceState.READY, ["/mnt/data"])
    steps = hops_of(PAGE.partition(HEADING)[2].partition("\n## ")[0])
    assert 0 < len(steps) < 12
    assert missing(steps, calls) == []
