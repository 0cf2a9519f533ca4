"""Keeps this machine's own ssh configuration in step with the slices, whichever machine restored them."""

from __future__ import annotations

from collections.abc import Iterable

from tpuctl.engine.events import Warn
from tpuctl.engine.services import Services
from tpuctl.hosts.targets import host_targets
from tpuctl.model.records import SliceRecord, SliceState


def follow_slices(services: Services, records: Iterable[SliceRecord]) -> None:
    """Writes the entries of these slices anew where their workers are others now, and removes those of slices
    that are gone. Costs a look into one directory where the user asked for no entries.

    What this machine does not let it read or write is said, and keeps nobody from the slices themselves."""
    try:
        _follow(services, records)
    except OSError as error:
        services.emit(Warn("ssh", f"the ssh entries of this machine were not changed: {error}"))


def _follow(services: Services, records: Iterable[SliceRecord]) -> None:
    kept = services.ssh_entries.names()
    for record in records:
        if record.name not in kept:
            continue
        if record.state is SliceState.GONE:
            services.ssh_entries.remove(record.name)
        elif record.incarnation is not None and record.incarnation.workers:
            services.ssh_entries.update(record.name, host_targets(services, record))
