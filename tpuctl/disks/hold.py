"""Holding the file system of a master still while a copy of it begins.

A hold is a lease on the host that writes: this side renews it while it waits, and the host ends it by itself
when nobody does. Its id is in the record of the copy before it begins, so that whoever finishes the copy of a
command that died ends that hold, and no other. A copy is good if its hold still stood when the copy was seen to
have begun. That is asked of the host, by the call that ends the hold: no clocks are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from tpuctl.disks.hosts import HOLD_S, LONGEST_S, Once
from tpuctl.disks.make import get_record, list_records, save_record
from tpuctl.disks.slices import holders, writer_of
from tpuctl.disks.vacate import known_disks, writable_disks
from tpuctl.engine.events import Note, Warn
from tpuctl.engine.reconcile import Outcome, converge
from tpuctl.engine.services import Services
from tpuctl.errors import TpuctlError
from tpuctl.model.disks import DiskMode, DiskRecord
from tpuctl.model.records import SliceRecord
from tpuctl.model.verdict import Done, Wait
from tpuctl.state.journal import record_decision
from tpuctl.things.driver import bring_hosts

RENEW_S = 30.0
"""How often a hold is renewed: three times of four may fail before it ends."""
RENEW_LIMIT_S = 20.0
"""A host that does not answer must not keep a command from seeing that its copy has begun."""
NOT_MOUNTED = "it is not mounted"
OVER = "over-"
"""Before the id of a hold that was given up before its copy had begun, as far as anybody knows."""


@dataclass
class Hold:
    """A file system that is held still for a copy, until `release` or the end of its lease. One without a
    `writer` holds nothing: nobody writes the master."""

    services: Services
    master: DiskRecord
    writer: SliceRecord | None
    name: str
    deadline: float | None

    def __post_init__(self) -> None:
        self._renewed = self.services.clock.now()

    def renew(self) -> None:
        """Does so where it is time. A host that does not answer is asked again next time: its timer goes on."""
        now = self.services.clock.now()
        if self.writer is None or now - self._renewed < RENEW_S:
            return
        self._renewed = now
        try:
            self._ask("renew_hold", now + RENEW_LIMIT_S)
        except TpuctlError as error:
            self.services.emit(Warn(self.master.name, f"its hold was not renewed: {error.message}"))

    def release(self) -> bool:
        """Ends it; whether it had stood until now."""
        if self.writer is None:
            return False
        return self._ask("release_disk", self.deadline, unseen=True).get("stood") == "True"

    def try_release(self) -> None:
        """For a copy that came to nothing: where the host does not answer soon, its timer does it."""
        try:
            if self.writer is not None:
                limit = self.services.clock.now() + RENEW_LIMIT_S
                self._ask("release_disk", limit, unseen=True)
        except TpuctlError as error:
            said = f"it goes on by itself within {HOLD_S} s: {error.message}"
            self.services.emit(Warn(self.master.name, said))

    def _ask(self, verb: str, deadline: float | None, *, unseen: bool = False) -> Mapping[str, str]:
        writer = self.writer
        if writer is None:
            return {}
        once = Once(verb, self.master.fs_label, "", self.services.ids.new_id(), hold=self.name)
        [row] = bring_hosts(self.services, writer, [once], workers=[0], deadline=deadline, unseen=unseen)
        return row


def take_hold(
    services: Services, master: DiskRecord, record: DiskRecord, *, unmount: bool, deadline: float | None
) -> Hold | None:
    """Holds the file system of a master for a copy, whose record says so before; None where nobody writes it:
    then nothing has to stand still, and the copy holds no word."""
    having = holders(services, master.request.zone, master.name)  # read once: what follows agrees with it
    writer = next((each for each, entry in having if entry.mode is DiskMode.READ_WRITE), None)
    if writer is None:
        disk = services.disks.find_disk(master.request.zone, master.name)
        if disk is not None and disk.users and not having:
            raise TpuctlError(
                f"disk {master.name} is used by {disk.users[0]}, which is no host of a slice of ours",
                hint="unmount it there and detach it, then clone",
            )
        _note(services, record, hold="", token="")
        return None
    end_holds(services, master)
    name = services.ids.new_id()
    word = f"{record.name}-{name}"
    _note(services, record, hold=name, token=word)
    life = writer.incarnation.cloud_name if writer.incarnation else ""
    record_decision(services, master.key, "hold", f"for {record.name}, on {writer.name}", incarnation=life)
    hold = Hold(services, master, writer, name, deadline)
    row = _begin(services, master, writer, name, word, unmount, deadline)
    how = row.get("how", "")
    services.emit(Note(master.name, f"held still on {writer.name}: {how}"))
    if how == NOT_MOUNTED:
        _note(services, record, hold="", token="")
        return None
    if row.get("word") != "True":
        _note(services, record, hold=name, token="")
    return hold


def _begin(
    services: Services,
    master: DiskRecord,
    writer: SliceRecord,
    name: str,
    word: str,
    unmount: bool,
    deadline: float | None,
) -> Mapping[str, str]:
    """Waits for the end of a hold that stands for somebody else's copy: that is no business of ours."""
    told: list[Mapping[str, str]] = []
    written = [name for names in writable_disks(services, writer).values() for name in names]
    disks = tuple(known_disks(services, writer, written).values())

    def step() -> Outcome:
        this_time = services.ids.new_id()
        once = Once(
            "hold_disk",
            master.fs_label,
            word,
            this_time,
            hold=name,
            disk=master.name,
            disks=disks,
            unmount=unmount,
        )
        [row] = bring_hosts(services, writer, [once], workers=[0], deadline=deadline)
        if row.get("how") != "busy":
            told.append(row)
            return Outcome(Done(), acted=False)
        left = float(row.get("seconds", HOLD_S))
        return Outcome(Wait(f"{master.name} is held for another copy, for {left:.0f} s yet"), acted=False)

    limit = services.clock.now() + LONGEST_S if deadline is None else deadline
    converge(services, f"disk {master.name}", step, deadline=limit)
    return told[-1]


def end_holds(services: Services, master: DiskRecord) -> None:
    """Ends what commands that died hold of a master, each hold by its own id; where the host does not answer,
    its timer does it. For who has the master's lease: none of those commands is at work any more."""
    writer = writer_of(services, master)
    for each in list_records(services):
        is_held = each.hold and not each.hold.startswith(OVER)
        if master.name in (each.master, each.parent) and is_held and writer is not None:
            Hold(services, master, writer, each.hold, None).try_release()
            note_over(services, each)


def note_over(services: Services, record: DiskRecord) -> None:
    """Writes down that the hold of a copy was given up. No host knows it by that name, so whoever finishes the
    copy hears that its hold did not stand."""
    if record.hold and not record.hold.startswith(OVER):
        save_record(services, replace(record, hold=OVER + record.hold))


def _note(services: Services, record: DiskRecord, *, hold: str, token: str) -> None:
    save_record(services, replace(get_record(services, record.name), hold=hold, token=token))


def make_under(hold: Hold | None, make: Callable[[Callable[[], None]], object]) -> bool:
    """Makes a copy while its master is held; whether the hold stood until it had begun."""
    if hold is None:
        make(lambda: None)
        return True
    try:
        make(hold.renew)
    except BaseException:
        hold.try_release()
        raise
    return hold.release()
