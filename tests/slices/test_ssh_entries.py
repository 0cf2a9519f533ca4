"""What a machine's own `ssh` knows of a slice follows it, whichever machine brought the slice back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.jobs import bring_up
from tests.support.memory.services import MemoryPlace, MemoryServices
from tpuctl.engine.events import Warn
from tpuctl.hosts.targets import host_targets
from tpuctl.model.records import SliceState
from tpuctl.runs.take_down import take_down
from tpuctl.slices.choose import resolve_slice
from tpuctl.ssh.ssh_config import SshConfigFiles
from tpuctl.state.repository import get_slice
from tpuctl.views.slices import fleet_rows
from tpuctl.watch.reconciler import run_pass

WAYS: dict[str, Callable[[MemoryServices], object]] = {
    "a command on its hosts": lambda services: resolve_slice(services, "big"),
    "ls": fleet_rows,
    "a pass": run_pass,
}


@pytest.fixture
def homes(place: MemoryPlace, tmp_path: Path) -> tuple[MemoryServices, MemoryServices]:
    """Two machines of one fleet, and the user has asked for entries on both."""
    laptop, office = place.machine("laptop"), place.machine("office")
    for each in (laptop, office):
        each.ssh_entries = SshConfigFiles(tmp_path / each.machine / "ssh_config", tmp_path / "key")
    bring_up(laptop, "big")
    for each in (laptop, office):
        each.ssh_entries.write("big", host_targets(each, get_slice(each, "big").record))
    return laptop, office


def known(services: MemoryServices) -> tuple[str, str]:
    """Entries and pins, without the place where they are."""
    folder = services.ssh_entries.path("big").parent
    entries = services.ssh_entries.path("big").read_text().replace(str(folder), "HERE")
    return entries, services.ssh_entries.known_hosts("big").read_text()


def lose_and_recover(place: MemoryPlace, services: MemoryServices) -> None:
    place.world.preempt("big-1")
    for _ in range(30):
        place.clock.advance(60.0)
        run_pass(services)
        record = get_slice(services, "big").record
        if record.state is SliceState.READY and record.last_incarnation == 2:
            return
    raise AssertionError(record)


@pytest.mark.parametrize("way", WAYS)
def test_the_machine_that_did_not_recover_it_follows_at_its_next_look(place, homes, way):
    laptop, office = homes
    before = known(office)
    assert known(laptop) == before
    lose_and_recover(place, laptop)
    assert known(laptop) != before
    assert known(office) == before
    WAYS[way](office)
    assert known(office) == known(laptop)


def test_what_is_true_already_is_not_written_again(place, homes):
    _, office = homes
    folder = office.ssh_entries.path("big").parent
    before = {path.name: path.stat().st_ino for path in folder.iterdir()}
    for look in WAYS.values():
        look(office)
    assert {path.name: path.stat().st_ino for path in folder.iterdir()} == before


def test_pins_alone_follow_too_and_grow_no_entries(place, homes):
    laptop, office = homes
    office.ssh_entries.path("big").unlink()
    lose_and_recover(place, laptop)
    resolve_slice(office, "big")
    assert office.ssh_entries.known_hosts("big").read_text() == known(laptop)[1]
    assert not office.ssh_entries.path("big").exists()


def test_entries_of_a_slice_that_is_gone_go_on_every_machine(place, homes):
    laptop, office = homes
    take_down(laptop, "big")
    assert office.ssh_entries.names() == {"big"}
    run_pass(office)
    assert office.ssh_entries.names() == frozenset()
    assert list(office.ssh_entries.path("big").parent.iterdir()) == []


@pytest.mark.parametrize("way", WAYS)
def test_a_place_that_cannot_be_read_keeps_nobody_from_the_slices(place, homes, tmp_path, way):
    _, office = homes
    (tmp_path / "file").write_text("")
    office.ssh_entries = SshConfigFiles(tmp_path / "file", tmp_path / "key")
    WAYS[way](office)
    told = [event.text for event in office.events if isinstance(event, Warn)]
    assert any("were not changed" in text for text in told)
