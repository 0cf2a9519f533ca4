"""The store in a bucket: lost answers, refusals, two machines, few calls, and moving a fleet into it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core.exceptions import from_http_status
from google.oauth2.credentials import Credentials

from tests.support.jobs import bring_up
from tests.support.services import sim_services
from tests.support.sim import RunningSim, running_sim
from tpuctl.cloud.storage import GoogleObjects, translate
from tpuctl.errors import (
    BadConfigError,
    ConflictError,
    DamagedRecordError,
    DeniedError,
    LeaseHeldError,
    RateLimitedError,
    TransientError,
)
from tpuctl.lib.retry import patiently
from tpuctl.model.timeouts import LEASE_TTL_S
from tpuctl.runs.take_down import take_down
from tpuctl.state.bucket import BucketStore, read_identity, write_identity
from tpuctl.state.leases import take_lease
from tpuctl.state.repository import get_slice, list_slices
from tpuctl.watch.reconciler import run_pass
from tpuctl.workers.exec import execute

URI = "gs://sim-bucket/fleet"


@pytest.fixture
def sim(tmp_path) -> Iterator[RunningSim]:
    with running_sim(tmp_path) as running:
        yield running


class Counted:
    """Objects that remember which of their methods were called."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self._inner, name)


class Machines:
    """Opens the one store as several machines would."""

    def __init__(self, sim: RunningSim, folder: Path) -> None:
        self._folder = folder
        self._stores: list[BucketStore] = []
        credentials = Credentials(token=sim.token)
        self.objects = Counted(GoogleObjects(sim.profile["project"], sim.endpoint, credentials))
        write_identity(self.objects, URI, "s0123456789")

    def open(self, machine: str = "one", uri: str = URI) -> BucketStore:
        store = BucketStore(self.objects, uri, self._folder / machine, sleep=lambda _: None)
        self._stores.append(store)
        return store

    def close(self) -> None:
        for store in self._stores:
            store.close()


@pytest.fixture
def machines(sim, tmp_path) -> Iterator[Machines]:
    made = Machines(sim, tmp_path)
    yield made
    made.close()


@pytest.fixture
def store(machines) -> BucketStore:
    return machines.open()


def lose_the_next_answer(sim: RunningSim, method: str = "storage.post") -> None:
    sim.fault(kind="drop", method=method)


def test_a_write_whose_answer_is_lost_is_known_again(sim, store, machines):
    lose_the_next_answer(sim)
    first = store.put("slices/big", {"n": 1}, if_generation=0)
    lose_the_next_answer(sim)
    second = store.put("slices/big", {"n": 2}, if_generation=first.generation)
    assert machines.open("two").get("slices/big") == second
    with pytest.raises(ConflictError):
        store.put("slices/big", {"n": 3}, if_generation=first.generation)


def test_an_entry_whose_answer_is_lost_is_there_once(sim, store, machines):
    for number in range(3):
        lose_the_next_answer(sim)
        store.append("journal/slices/big", {"n": number})
    found = machines.open("two").list("journal/slices/big/")
    assert [document.data["n"] for document in found] == [0, 1, 2]


def test_a_blob_whose_answer_is_lost_is_there(sim, store, machines):
    lose_the_next_answer(sim)
    digest = store.put_blob(b"code" * 1000)
    assert machines.open("two").get_blob(digest) == b"code" * 1000


def test_a_delete_whose_answer_is_lost_is_done(sim, store):
    document = store.put("grants/a", {}, if_generation=0)
    lose_the_next_answer(sim, "storage.delete")
    store.delete("grants/a", if_generation=document.generation)
    assert store.get("grants/a") is None


@pytest.mark.parametrize("code", [8, 14], ids=["429", "503"])
@pytest.mark.parametrize("method", ["storage.post", "storage.get", "storage.delete"])
def test_passing_trouble_is_sat_out(sim, store, code, method):
    sim.fault(kind="error", method=method, code=code, message="slow down", times=2)
    document = store.put("a", {"n": 1}, if_generation=0)
    assert store.get("a") == document
    assert store.list("a") == [document]
    store.delete("a", if_generation=document.generation)
    assert store.list("a") == []


def test_trouble_that_does_not_pass_is_said(sim, store):
    sim.fault(kind="error", method="storage.post", code=14, message="Internal error.", times=0)
    with pytest.raises(TransientError):
        store.put("a", {}, if_generation=0)


@pytest.mark.parametrize(
    ("code", "status", "kind"), [(8, 429, RateLimitedError), (14, 503, TransientError)], ids=["429", "503"]
)
def test_what_the_bucket_answers_all_the_time_is_said_in_plain_words(sim, machines, code, status, kind):
    sim.fault(kind="error", method="storage.*", code=code, message="Please come back.", times=0)
    calls = {
        "read gs://sim-bucket/fleet/identity": machines.open,
        "write gs://sim-bucket/x": lambda: machines.objects.write("gs://sim-bucket/x", b"x", if_generation=0),
    }
    for what, call in calls.items():
        with pytest.raises(kind) as raised:
            call()
        assert raised.value.message == f"could not {what}: Cloud Storage answered {status}: Please come back."
        assert "again in a minute" in raised.value.hint


def test_a_server_that_takes_long_to_fail_is_not_asked_for_long(monkeypatch):
    ticks = iter(range(0, 1000, 3))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    asked = []

    def fail() -> None:
        asked.append(1)
        raise TransientError("no answer")

    with pytest.raises(TransientError):
        patiently(fail, lambda _: None)
    assert len(asked) == 2


def test_listing_what_has_not_changed_reads_no_object(store, machines):
    for number in range(20):
        store.put(f"slices/s{number}", {"n": number}, if_generation=0)
    other = machines.open("two")
    assert len(other.list("slices/")) == 20
    machines.objects.calls.clear()
    assert [document.data["n"] for document in other.list("slices/s7")] == [7]
    assert len(other.list("slices/")) == 20
    assert machines.objects.calls == ["list", "list"]
    changed = store.get("slices/s3")
    store.put("slices/s3", {"n": -3}, if_generation=changed.generation)
    machines.objects.calls.clear()
    assert {document.data["n"] for document in other.list("slices/")} >= {-3}
    assert machines.objects.calls == ["list", "read"]


def test_a_damaged_cache_costs_reads_and_nothing_else(store, machines, tmp_path):
    document = store.put("slices/a", {"n": 1}, if_generation=0)
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "objects.sqlite").write_bytes(b"no database" * 100)
    assert machines.open("two").list("slices/") == [document]


def test_the_cache_is_private(store, tmp_path):
    store.put("a", {}, if_generation=0)
    store.put_blob(b"x")
    for path in [tmp_path / "one", *(tmp_path / "one").rglob("*")]:
        assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0, path


def test_time_is_the_servers_whatever_this_machine_believes(sim, machines):
    sim.fault(kind="clock", seconds=7200.0, times=0)
    ahead = machines.open().now() - time.time()
    assert 7190 < ahead < 7210


def test_of_two_machines_one_holds_a_lease_and_fences_only_grow(sim, tmp_path, machines):
    with (
        sim_services(sim, tmp_path / "a", process=1) as first,
        sim_services(sim, tmp_path / "b", process=2) as second,
    ):
        for services, machine in ((first, "one"), (second, "two")):
            services.store = machines.open(machine)
            services.process_alive = lambda owner: True
        fences = []
        for number in range(6):
            services, other = (first, second) if number % 2 else (second, first)
            with take_lease(services, "big") as held:
                fences.append(held.fence)
                with pytest.raises(LeaseHeldError), take_lease(other, "big"):
                    raise AssertionError("two holders at once")
        lose_the_next_answer(sim)
        with take_lease(first, "big") as held:
            fences.append(held.fence)
        assert fences == sorted(set(fences))


def test_a_bucket_without_a_store_is_named(machines):
    with pytest.raises(BadConfigError, match="no store at gs://sim-bucket/other") as raised:
        machines.open(uri="gs://sim-bucket/other")
    assert "config init" in raised.value.hint


def test_a_newer_schema_is_refused(machines):
    content = json.dumps({"schema": 99, "identity": "x"}).encode()
    machines.objects.write("gs://sim-bucket/newer/identity", content, if_generation=0)
    with pytest.raises(BadConfigError, match="newer tpuctl"):
        machines.open(uri="gs://sim-bucket/newer")


def test_a_fleet_lives_in_the_bucket_and_another_machine_takes_over(sim, tmp_path, machines):
    """Everything that a slice goes through, with one machine's work going on on the other."""
    with (
        sim_services(sim, tmp_path / "a", process=1) as first,
        sim_services(sim, tmp_path / "b", process=2) as second,
    ):
        first.store, second.store = machines.open("one"), machines.open("two")
        second.machine = "other-machine"
        bring_up(first, "big")
        sim.preempt("big-1")
        for _ in range(20):
            run_pass(second)
            second.clock.sleep(60.0)
            record = get_slice(first, "big").record
            if record.incarnation.number == 2 and record.state == "ready":
                break
        assert (record.incarnation.number, record.state) == (2, "ready")
        assert execute(first, record, ["true"])[1].ok
        take_down(second, "big")
        assert [record.state for record in list_slices(first)] == ["gone"]


def test_identity_is_written_once(machines):
    assert read_identity(machines.objects, URI) == "s0123456789"
    write_identity(machines.objects, URI, "s0123456789")
    with pytest.raises(ConflictError):
        write_identity(machines.objects, URI, "another")


def test_the_store_of_another_project_is_refused(machines, tmp_path):
    uri = "gs://sim-bucket/shared"
    write_identity(machines.objects, uri, "s0123456789", "theirs")
    with pytest.raises(BadConfigError, match="store of project theirs, not of ours") as raised:
        BucketStore(machines.objects, uri, tmp_path / "x", sleep=lambda _: None, project="ours")
    assert "--project theirs" in raised.value.hint
    assert read_identity(machines.objects, uri, "theirs") == "s0123456789"
    assert read_identity(machines.objects, URI, "ours") == "s0123456789", "older stores name no project"


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        (
            "Permission 'storage.objects.create' denied on resource (or it may not exist).",
            "--role=roles/storage.objectUser",
        ),
        ("Object is subject to bucket's retention policy", "--clear-retention-period"),
    ],
)
def test_a_refusal_says_what_to_change(sim, store, message, hint):
    sim.fault(kind="error", method="storage.post", code=7, message=message)
    with pytest.raises(DeniedError) as raised:
        store.put("a", {}, if_generation=0)
    assert hint in raised.value.hint
    assert "gs://sim-bucket" in raised.value.hint


def test_a_refusal_to_look_at_the_bucket_names_the_role_for_that(sim, machines):
    sim.fault(kind="error", method="storage.get", code=7, message="me does not have storage.buckets.get access")
    with pytest.raises(DeniedError) as raised:
        machines.objects.bucket_exists("sim-bucket")
    assert "--role=roles/storage.legacyBucketReader" in raised.value.hint


def test_nothing_is_asked_of_the_cloud_but_what_tpuctl_asks(sim, tmp_path, caplog):
    caplog.set_level("DEBUG", "tpuctl.sim.api")
    assert read_identity(Machines(sim, tmp_path).objects, URI) == "s0123456789"
    for thread in threading.enumerate():
        if "_fetch" in thread.name:  # of google-cloud-storage, which wants to know the place of the bucket
            thread.join(60)
    asked = [message.partition("/storage")[0] for message in caplog.messages]
    assert asked == ['"POST /upload', '"GET /download'], caplog.messages


STORAGE_FAULTS = ("storage-rate-limit", "storage-unavailable", "storage-lost-response")


@pytest.mark.parametrize("preset", STORAGE_FAULTS)
@pytest.mark.parametrize("times", [1, 3])
class TestEachFaultOfStorage:
    """The named faults of `tpuctl sim fault`, against every call that changes the store."""

    @pytest.fixture
    def strike(self, sim, preset, times):
        return lambda: sim.fault(preset=preset, method="storage.post", times=times)

    def test_a_document_is_written_once_and_can_be_built_on(self, store, machines, strike):
        strike()
        first = store.put("slices/a", {"n": 1}, if_generation=0)
        strike()
        second = store.put("slices/a", {"n": 2}, if_generation=first.generation)
        third = machines.open("two").put("slices/a", {"n": 3}, if_generation=second.generation)
        assert store.get("slices/a") == third
        with pytest.raises(ConflictError):
            store.put("slices/a", {"n": 4}, if_generation=second.generation)

    def test_an_entry_is_appended_once(self, store, machines, strike):
        for number in range(3):
            strike()
            store.append("journal/a", {"n": number})
        assert [entry.data["n"] for entry in machines.open("two").list("journal/a/")] == [0, 1, 2]

    def test_a_blob_is_whole(self, store, machines, strike):
        strike()
        digest = store.put_blob(b"code" * 1000)
        assert machines.open("two").get_blob(digest) == b"code" * 1000

    def test_the_fence_of_a_lease_grows_by_one_each_time(self, machines, strike):
        fences = []
        for number in range(3):
            owner = as_machine(machines.open(f"m{number}"), f"m{number}/1")
            strike()
            with take_lease(owner, "big") as held:
                fences.append(held.fence)
        assert fences == [1, 2, 3]


def as_machine(store: BucketStore, owner: str) -> Any:
    """What a lease needs; another machine cannot tell whether a process is alive."""
    return SimpleNamespace(store=store, lease_owner=owner, process_alive=lambda _: True)


def test_a_lease_is_never_taken_before_the_server_says_that_it_is_over(sim, machines):
    """Machines that measured the time at different moments agree on no holder twice."""
    first, second = (as_machine(machines.open(name), f"{name}/1") for name in ("one", "two"))
    with take_lease(first, "big") as held:
        with pytest.raises(LeaseHeldError), take_lease(second, "big"):
            pass
        sim.fault(preset="clock-off", name="clock", seconds=LEASE_TTL_S + 5.0)
        late = as_machine(machines.open("three"), "three/1")
        with take_lease(late, "big") as taken:
            assert taken.fence == held.fence + 1
            with pytest.raises(LeaseHeldError), take_lease(first, "big"):
                pass


def test_the_time_is_late_rather_than_early(machines):
    before = int(time.time())
    assert before <= machines.objects.server_time("sim-bucket") <= int(time.time())


def test_entries_of_two_machines_list_in_the_order_of_appending(machines):
    """They know the server's time to a second only."""
    stores = [machines.open(name) for name in ("one", "two", "three")]
    for number in range(9):
        stores[number * 2 % 3].append("journal/big", {"n": number})
    found = machines.open("four").list("journal/big/")
    assert [entry.data["n"] for entry in found] == list(range(9))


def test_a_folder_made_in_the_console_is_no_document(store, machines):
    store.put("slices/big", {"n": 1}, if_generation=0)
    for name in ("docs/", "docs/slices/"):
        machines.objects.write(f"{URI}/{name}", b"", if_generation=0)
    assert [document.key for document in store.list("slices/")] == ["slices/big"]
    assert store.list_keys() == ["slices/big"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"nonce": "x"}', b'{"data": 3}', b"\xff\xfe"])
def test_a_document_that_somebody_else_wrote_is_named_and_hides_no_other(store, machines, content):
    store.put("slices/fine", {"n": 1}, if_generation=0)
    machines.objects.write(f"{URI}/docs/slices/big", content, if_generation=0)
    listed = store.list("slices/")
    assert [document.key for document in listed] == ["slices/big", "slices/fine"]
    assert listed[1].data == {"n": 1}
    for odd in (store.get("slices/big"), listed[0]):
        with pytest.raises(DamagedRecordError, match=f"{URI}/docs/slices/big is not a document"):
            dict(odd.data)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema": "x"}', b'{"schema": 1}'])
def test_an_identity_that_somebody_else_wrote_is_named(machines, content):
    machines.objects.write("gs://sim-bucket/odd/identity", content, if_generation=0)
    with pytest.raises(BadConfigError, match="gs://sim-bucket/odd/identity is not the mark"):
        machines.open(uri="gs://sim-bucket/odd")


def test_a_blob_that_is_missing_or_damaged_in_the_cache_is_read_from_the_bucket(store, machines, tmp_path):
    digest = store.put_blob(b"code")
    reader = machines.open("two")
    assert reader.get_blob(digest) == b"code"
    cached = tmp_path / "two" / "blobs" / digest[:2] / digest
    cached.write_bytes(b"c0de")
    assert reader.get_blob(digest) == b"code"
    assert cached.read_bytes() == b"code"
    cached.unlink()
    assert reader.get_blob(digest) == b"code"


def test_a_cache_that_cannot_be_written_costs_reads_and_nothing_else(store, machines, tmp_path):
    digest = store.put_blob(b"code")
    reader = machines.open("two")
    (tmp_path / "two" / "blobs").write_bytes(b"in the way")
    assert reader.get_blob(digest) == b"code"
    assert reader.put_blob(b"more") == hashlib.sha256(b"more").hexdigest()
    assert store.get_blob(hashlib.sha256(b"more").hexdigest()) == b"more"


def test_a_blob_costs_one_call_when_it_is_new_and_two_when_it_is_there(store, machines):
    machines.objects.calls.clear()
    store.put_blob(b"code")
    assert machines.objects.calls == ["write"]
    machines.objects.calls.clear()
    machines.open("two").put_blob(b"code")
    assert [call for call in machines.objects.calls if call in ("write", "list")] == ["write", "list"]


def test_time_goes_on_while_the_machine_sleeps(machines, monkeypatch):
    """A lease written by the time of before the sleep would look expired to everybody else."""
    store = machines.open()
    before = store.now()
    clock = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda _: clock(time.CLOCK_BOOTTIME) + 30.0)
    assert store.now() - before >= 30.0
    monkeypatch.setattr(time, "clock_gettime", lambda _: clock(time.CLOCK_BOOTTIME) + 3600.0)
    assert abs(store.now() - time.time()) < 5, "after so long the server is asked again"


def test_an_answer_that_is_not_what_its_checksum_says_is_passing_trouble(sim, machines, tmp_path):
    machines.objects.write("gs://sim-bucket/x", b"whole content", if_generation=0)
    (content,) = [path for path in tmp_path.rglob("gcs/content/*") if path.read_bytes() == b"whole content"]
    content.write_bytes(b"other content")
    with pytest.raises(TransientError, match="could not read gs://sim-bucket/x"):
        machines.objects.read("gs://sim-bucket/x")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(410, TransientError), (408, TransientError), (500, TransientError), (504, TransientError)],
)
def test_an_upload_that_the_server_gave_up_is_begun_anew(status, kind):
    assert isinstance(translate(from_http_status(status, "no"), "write gs://b/o"), kind)
