"""What `status` makes of its facts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.support.builders import a_spec
from tests.support.memory.services import MemoryPlace
from tpuctl.cli.slice_status import status_lines
from tpuctl.errors import NotFoundError
from tpuctl.lib.time import render_time
from tpuctl.model.disks import DiskMode
from tpuctl.model.records import SliceState
from tpuctl.model.refs import DiskRef, MountRef
from tpuctl.mounts.use import list_mounts
from tpuctl.slices.desired import request_slice
from tpuctl.state.journal import record_decision
from tpuctl.state.repository import get_slice, save
from tpuctl.views.decisions import decisions
from tpuctl.views.slices import options_shown

NOW = 1_790_000_000.0
FACTS = {
    "name": "big",
    "state": "lost",
    "desired": "up",
    "type": "v4-32",
    "zone": "us-central2-b",
    "tier": "spot",
    "hosts": 8,
    "chips": 32,
    "devices": 32,
    "slices": 2,
    "runtime_version": "tpu-ubuntu2204-base",
    "options": {"service_account": "trainer@my-project.iam.gserviceaccount.com"},
    "env": None,
    "mounts": [],
    "race": [],
    "queued": True,
    "machine_type": "",
    "user": "ada",
    "login_user": "tpuctl",
    "created": render_time(NOW - 7200),
    "node": "big-3",
    "requested": render_time(NOW - 600),
    "ready": None,
    "cloud": "big-3 does not exist",
    "last_loss": {"at": render_time(NOW - 30), "kind": "preempted", "detail": "SUSPENDED by the service"},
    "ends": render_time(NOW + 3600),
    "ends_in_cloud": None,
    "stop_when_idle_s": 1800.0,
    "payer": "",
    "usd_per_hour": None,
    "paid": "",
    "runs": [
        {
            "id": "r1",
            "state": "waiting",
            "chips": [],
            "failure": {"signature": "disk-full"},
            "synthetic": True,
            "trouble": None,
        },
        {
            "id": "r2",
            "state": "running",
            "chips": [2],
            "failure": None,
            "synthetic": False,
            "trouble": None,
        },
    ],
}


def test_times_are_spans_and_what_does_not_apply_is_left_out() -> None:
    lines = status_lines(FACTS, NOW)
    assert lines["type"] == "2 x v4-32, 8 hosts, 32 chips"
    assert lines["last loss"] == f"preempted {render_time(NOW - 30)}, 30 s ago: SUSPENDED by the service"
    assert lines["taken down"] == f"at {render_time(NOW + 3600)}, in 1 h, or when unused for 30 min"
    assert lines["run"] == "r1 (waiting); before: disk-full; r2 (running on chip 2)"
    assert lines["data"] == "synthetic"
    assert lines["service account"] == "trainer@my-project.iam.gserviceaccount.com"
    assert "ready since" not in lines
    assert not lines.get("trouble")
    slow = {**FACTS["runs"][0], "trouble": "slow: 0.9 steps/s in the last 5 min, 2.1 before"}
    assert status_lines({**FACTS, "runs": [slow]}, NOW)["trouble"] == slow["trouble"]


def test_a_slice_on_its_way_down_says_so() -> None:
    lines = status_lines({**FACTS, "desired": "down", "ends": None, "stop_when_idle_s": None, "runs": []}, NOW)
    assert lines["state"] == "lost (to be taken down)"
    assert not {"taken down", "run", "data"} & set(lines)


def test_what_compute_engine_does_by_itself_and_devices_of_a_chip_are_shown() -> None:
    of_machines = {"type": "tpu7x-16", "slices": 1, "hosts": 2, "chips": 8, "devices": 16}
    lines = status_lines({**FACTS, **of_machines, "ends_in_cloud": render_time(NOW + 5400)}, NOW)
    assert lines["type"] == "tpu7x-16, 2 hosts, 8 chips (16 devices)"
    assert lines["taken down"].endswith(
        f"or by Compute Engine itself at {render_time(NOW + 5400)}, in 1 h 30 min"
    )


def test_mounts_with_the_same_health_are_told_together() -> None:
    rows = [{"path": "/mnt/a", "worker": n, "health": "mounted", "well": True} for n in (0, 1, 2)]
    rows.append({"path": "/mnt/a", "worker": 3, "health": "not mounted", "well": False})
    lines = status_lines({**FACTS, "mounts": rows}, NOW)
    assert lines["mounts now"] == "/mnt/a on workers 0-2: mounted; /mnt/a on worker 3: not mounted"
    assert "mounts now" not in status_lines(FACTS, NOW)


def test_decisions_outlive_the_record_and_the_fleet_has_its_own(place: MemoryPlace) -> None:
    services = place.machine("laptop")
    with pytest.raises(NotFoundError, match="big"):
        decisions(services, "big")
    with pytest.raises(NotFoundError) as refused:
        decisions(services, "nope")
    assert "`tpuctl runs`" in str(refused.value.hint)
    assert decisions(services, "fleet") == []
    record_decision(services, "slices/big", "reap", "no record wants it")
    record_decision(services, "fleet", "pause", "maintenance")
    [reaped] = decisions(services, "big")
    assert (reaped["subject"], reaped["action"], reaped["user"]) == ("big", "reap", services.user)
    assert [(row["subject"], row["action"]) for row in decisions(services, "fleet")] == [("fleet", "pause")]


def test_a_damaged_decision_is_said_in_its_place_and_hides_no_other(place: MemoryPlace) -> None:
    services = place.machine("laptop")
    record_decision(services, "slices/big", "up", "asked for")
    key = services.store.append("journal/slices/big/", {"at": 5.0, "reason": None})
    record_decision(services, "slices/big", "ready", "4 hosts answered")
    before, damaged, after = decisions(services, "big")
    assert [before["action"], damaged["action"], after["action"]] == ["up", "damaged", "ready"]
    assert damaged["at"] == before["at"]
    assert damaged["reason"].startswith(f"the record {key} in the store is damaged")


def test_why_a_program_waited_while_a_disk_of_its_slice_was_copied_is_shown(place: MemoryPlace) -> None:
    services = place.machine("laptop")
    ref = DiskRef("data", "/mnt/data", DiskMode.READ_WRITE)
    request_slice(services, "big", replace(a_spec(), disks=(ref,)), pay=True, admit=lambda: None)
    stored = get_slice(services, "big")
    save(services, stored, replace(stored.record, last_incarnation=2))
    for slice_name in ("big", "other"):
        reason, life = f"for data-g1, on {slice_name}", f"{slice_name}-1"
        record_decision(services, "disks/data", "hold", reason, incarnation=life)
    record_decision(services, "disks/data", "create", "10 GiB, on big")
    shown = [(row["subject"], row["reason"]) for row in decisions(services, "big") if row["subject"] == "data"]
    assert shown == [("data", "for data-g1, on big")]


def test_a_mount_in_the_list_says_whether_it_is_there(place: MemoryPlace) -> None:
    services = place.machine("laptop")
    refs = [MountRef("b", "/mnt/a", "checkpoint"), MountRef("b", "/mnt/b", "checkpoint", leaving=True)]
    spec = replace(a_spec(), mounts=tuple(refs))
    request_slice(services, "big", spec, pay=True, admit=lambda: None)
    there, cut_off = list_mounts(services)
    assert there["state"] == "not mounted: the slice is requested"
    assert cut_off["state"].startswith("a mount or unmount was cut off: tpuctl mount check --heal")
    stored = get_slice(services, "big")
    save(services, stored, replace(stored.record, state=SliceState.READY))
    assert list_mounts(services)[0]["state"] == "mounted"


def test_all_that_was_asked_for_is_shown() -> None:
    assert options_shown(a_spec()) == {}
    said = a_spec(metadata={"b": "2", "a": "1"}, tags=("x", "y"), network="other", external_ips=False)
    shown = {"network": "other", "metadata": "a=1, b=2", "tags": "x, y", "external_ips": "no"}
    assert options_shown(said) == shown


def test_the_other_places_of_a_race_are_named_with_how_they_stand():
    race = [
        {"type": "v4-32", "zone": "us-east5-b", "node": "big-4", "state": "provisioning", "why": ""},
        {"type": "v6e-16", "zone": "us-east1-d", "node": "big-5", "state": "refused", "why": "no such type"},
    ]
    said = status_lines({**FACTS, "race": race}, NOW)["also asked for in"]
    assert said == "us-east5-b (big-4, provisioning); us-east1-d as v6e-16 (big-5, refused: no such type)"
