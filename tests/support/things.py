"""What a slice asks of its hosts, as its rows are asked in tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tpuctl.config.settings import Layer, resolve
from tpuctl.disks.thing import DISKS
from tpuctl.engine.services import Services
from tpuctl.model.slice_spec import SliceRequest, SliceSpec
from tpuctl.state.repository import find_slice
from tpuctl.things.of_slice import Asked


def with_disks(
    services: Services, said: Sequence[str], specs: tuple[SliceSpec, ...], name: str = ""
) -> tuple[SliceSpec, ...]:
    """What `--disk` makes of the specifications of a slice."""
    stored = find_slice(services, name) if name else None
    config = resolve([Layer("test", {})], Path("/nowhere"))
    request = SliceRequest(disk=tuple(said))
    return DISKS.resolve(services, Asked(request, config, name, stored and stored.record), specs)
