"""The memory of capacity: written where requests are made and end, read where a zone is chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from tpuctl.engine.events import Pace
from tpuctl.engine.services import Services
from tpuctl.errors import StaleRecordError
from tpuctl.model import capacity as notes
from tpuctl.model.capacity import CapacityNote, note_name
from tpuctl.model.cloud import Tier
from tpuctl.model.records import SliceRecord, SliceState
from tpuctl.model.slice_spec import SliceSpec
from tpuctl.state.repository import Repository, readable_slices

NOTES = Repository(CapacityNote, "capacity")

_ON_ITS_WAY = {SliceState.REQUESTED, SliceState.PROVISIONING}
NoteEnd = Callable[[CapacityNote, float, float], CapacityNote]


def read_notes(services: Services, spec: SliceSpec, zones: Iterable[str]) -> dict[str, CapacityNote]:
    """What is known about `spec`'s type and tier in each of `zones`."""
    found: dict[str, CapacityNote] = {}
    for zone in zones:
        note = NOTES.record(services, note_name(zone, spec.accelerator_type, spec.tier))
        if note is not None:
            found[zone] = note
    return found


def list_notes(services: Services) -> list[CapacityNote]:
    """Everything that was learnt and can be read, by zone and type."""
    return NOTES.readable(services)[0]


def remember_request(services: Services, record: SliceRecord) -> None:
    """A create is being called."""
    _update(services, record.spec, lambda note: notes.note_request(note, services.store.now()))


def remember_end(services: Services, record: SliceRecord, note_end: NoteEnd) -> None:
    """What became of the last request: its node is READY (`note_ready`), or is found READY when it goes, though
    nobody had waited for it (`note_came`)."""
    asked_at = record.incarnation.create_called_at if record.incarnation else None
    if asked_at is not None:
        _update(services, record.spec, lambda note: note_end(note, asked_at, services.store.now()))


def count_open(services: Services) -> Counter[str]:
    """How many requests have neither come nor failed as far as is recorded, by name of their note."""
    return Counter(
        note_name(record.spec.zone, record.spec.accelerator_type, Tier(record.spec.tier))
        for each in readable_slices(services)[0]
        for record in each.places
        if record.state in _ON_ITS_WAY
        and record.incarnation is not None
        and record.incarnation.create_called_at is not None
        and record.incarnation.cloud_ready_at is None
    )


def remember_lost(services: Services, record: SliceRecord) -> None:
    """The cloud took the current incarnation away."""
    ready_at = record.incarnation.cloud_ready_at if record.incarnation else None
    if ready_at is not None:
        _update(services, record.spec, lambda note: notes.note_lost(note, ready_at, services.store.now()))


def remember_failed(services: Services, record: SliceRecord, error: str) -> CapacityNote:
    """The request of the current incarnation got nothing. Returns the note with its back-off."""
    seed = record.incarnation.cloud_name if record.incarnation else record.name
    return _update(
        services, record.spec, lambda note: notes.note_failed(note, error, seed, services.store.now())
    )


def zone_backoffs(services: Services, spec: SliceSpec, zones: Iterable[str]) -> Mapping[str, float]:
    """Until when each zone is left alone, as remembered now.

    Kept in the record, so that failures of other slices do not push a slice's turn further and further away.
    """
    found = read_notes(services, spec, zones)
    return {zone: note.not_before for zone, note in found.items() if note.not_before > services.store.now()}


class UsualWait:
    """How long a slice has been asked for, beside how long the same took here before; read once per request."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._name = ""
        self.pace: Pace | None = None

    def saw(self, record: SliceRecord) -> None:
        """`pace` is about `record` from now on; None unless the cloud is at work on it."""
        life = record.incarnation
        called = life.create_called_at if life is not None else None
        if life is None or called is None or record.state not in _ON_ITS_WAY:
            self._name, self.pace = "", None
        elif life.cloud_name != self._name:
            note = read_notes(self._services, record.spec, [record.spec.zone]).get(record.spec.zone)
            self._name, self.pace = life.cloud_name, Pace(called, note.median_wait_s if note else None)


def _update(
    services: Services, spec: SliceSpec, change: Callable[[CapacityNote], CapacityNote]
) -> CapacityNote:
    """Where others write all the time a number is lost: no create fails for a statistic."""
    new = CapacityNote(spec.zone, spec.accelerator_type, spec.tier)
    try:
        return NOTES.update(services, new.name, lambda note: change(note or new))
    except StaleRecordError:
        return change(NOTES.record(services, new.name) or new)
