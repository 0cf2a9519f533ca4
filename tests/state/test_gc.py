"""What pruning removes from every kind of store, and what it never touches."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.builders import a_run, a_slice
from tests.support.crashing import STORE_CHANGES, Crash, Crashing, CrashPoint
from tests.support.stores import KINDS, Place, open_places
from tpuctl.errors import ConflictError, NotFoundError, TpuctlError, UsageError
from tpuctl.lib.codec import to_data
from tpuctl.model import timeouts
from tpuctl.model.attempts import CodeState
from tpuctl.model.records import RunState, SliceState
from tpuctl.model.refs import EnvironmentRef
from tpuctl.state.gc import find_waste, prune, prune_if_due
from tpuctl.state.gc_plan import parse_runs_age
from tpuctl.transfer.bundle import store_content
from tpuctl.transfer.tree import make_tree

pytestmark = pytest.mark.slow

DAY_S = 86400.0
AGE_S = timeouts.PRUNE_AFTER_S


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with open_places(request.param, tmp_path) as make:
        yield make(tmp_path / "state" / "store.sqlite")


@pytest.fixture
def open_store(place: Place) -> Iterator[Callable[[], Any]]:
    opened: list[Any] = []

    def open_it() -> Any:
        opened.append(place.open())
        return opened[-1]

    yield open_it
    for store in opened:
        store.close()


def digests(store: Any) -> set[str]:
    return {blob.sha256 for blob in store.list_blobs()}


def write_run(store: Any, bundle: str, **fields: Any) -> None:
    code = fields.pop("code", None) or CodeState(bundle, diff=fields.pop("diff", None))
    record = a_run(code=code, **fields)
    store.put(record.key, to_data(record), if_generation=0)


def test_only_what_is_old_and_named_nowhere_goes(place, open_store):
    store = open_store()
    tree = store_content(store, make_tree({"train.py": b"print(1)", "lib.py": b"x = 1"}))
    diff, spec, script = (store.put_blob(text) for text in (b"--- a", b"name: env", b"#!/bin/sh"))
    write_run(store, tree, diff=diff, environment=EnvironmentRef("env", spec), state=RunState.SUCCEEDED)
    slice_ = a_slice(name="big")
    store.put(
        slice_.key,
        to_data(replace(slice_, spec=replace(slice_.spec, startup_script=script))),
        if_generation=0,
    )
    kept = digests(store)
    lost = store.put_blob(b"of a run that was never written down")
    place.pass_time(AGE_S + DAY_S)
    later = open_store()
    young = later.put_blob(b"stored just now, by a run that will be written down in a moment")
    assert [blob.sha256 for blob in find_waste(later, AGE_S).blobs] == [lost]
    assert [blob.sha256 for blob in prune(later, AGE_S).blobs] == [lost]
    assert digests(later) == {*kept, young}
    with pytest.raises(NotFoundError):
        open_store().get_blob(lost)
    assert prune(later, AGE_S).blobs == ()


@pytest.mark.parametrize("key", ["manifests/r1/00001", "attempts/r1/00001", "of-a-newer-tpuctl/x", "alone"])
def test_a_reference_counts_wherever_it_stands(place, open_store, key):
    store = open_store()
    tree = store_content(store, make_tree({"train.py": b"print(1)"}))
    store.put(key, {"deep": [{"uri": f"sha256:{tree}"}]}, if_generation=0)
    place.pass_time(AGE_S + DAY_S)
    before = digests(store)
    assert len(before) == 2
    assert prune(open_store(), AGE_S).blobs == ()
    assert digests(store) == before


@pytest.mark.parametrize("text", ["code:\n{}\n", "\t{}", "caf\u00e9{}", "\u00e9{}\u00e9", "\\{}", "_{}_"])
def test_a_reference_counts_whatever_stands_beside_it(place, open_store, text):
    store = open_store()
    digest = store.put_blob(b"code")
    store.put("of-a-newer-tpuctl/x", {"text": text.format(digest)}, if_generation=0)
    place.pass_time(AGE_S + DAY_S)
    assert prune(open_store(), AGE_S).blobs == ()


def test_a_reference_may_be_a_key(place, open_store):
    store = open_store()
    digest = store.put_blob(b"code")
    store.put("of-a-newer-tpuctl/x", {"by digest": {digest: 1}}, if_generation=0)
    place.pass_time(AGE_S + DAY_S)
    assert prune(open_store(), AGE_S).blobs == ()


def test_what_a_tree_of_a_newer_tpuctl_names_is_kept(place, open_store):
    store = open_store()
    inner = store.put_blob(b"print(1)")
    rows = [["newer", "a", {"parts": [inner]}]]
    tree = store.put_blob(json.dumps({"schema": 2, "entries": rows}).encode())
    write_run(store, tree)
    place.pass_time(AGE_S + DAY_S)
    prune(open_store(), AGE_S)
    assert digests(store) == {inner, tree}


def test_a_journal_keeps_nothing(place, open_store):
    store = open_store()
    digest = store.put_blob(b"text")
    store.append("journal/slices/big", {"why": digest})
    place.pass_time(AGE_S + DAY_S)
    assert [blob.sha256 for blob in prune(open_store(), AGE_S).blobs] == [digest]


def test_an_old_blob_is_not_relied_on_and_is_young_when_stored_again(place, open_store):
    store = open_store()
    digest = store.put_blob(b"code")
    assert store.young_blobs([digest]) == {digest}
    place.pass_time(AGE_S + DAY_S)
    writer, pruner = open_store(), open_store()
    assert writer.young_blobs([digest]) == frozenset()
    (listed,) = pruner.list_blobs()
    assert writer.put_blob(b"code") == digest  # the writer comes between the list and the removal
    assert not pruner.remove_blob(listed)
    assert writer.young_blobs([digest]) == {digest}
    assert prune(pruner, AGE_S).blobs == ()
    assert open_store().get_blob(digest) == b"code"


def test_a_writer_that_finds_its_blob_removed_stores_it_again(place, open_store):
    digest = open_store().put_blob(b"code")
    place.pass_time(AGE_S + DAY_S)
    writer, pruner = open_store(), open_store()
    assert [blob.sha256 for blob in prune(pruner, AGE_S).blobs] == [digest]
    assert store_content(writer, make_tree({"a": b"code"}))
    assert open_store().get_blob(digest) == b"code"


def test_what_has_no_blob_name_is_no_blob(open_store):
    store = open_store()
    store.put_blob(b"code")
    assert store.young_blobs([hashlib.sha256(b"other").hexdigest()]) == frozenset()


def test_two_writers_and_a_pruner_at_once_lose_nothing_that_is_referred_to(place, open_store):
    """Everybody uses the same old contents; whatever order they come in, what a record names is there."""
    first = open_store()
    contents = [f"content {n}".encode() for n in range(6)]
    for content in contents:
        first.put_blob(content)
    place.pass_time(AGE_S + DAY_S)
    start = threading.Barrier(3)

    def write(store: Any, owner: int) -> None:
        start.wait()
        for number, content in enumerate(contents):
            tree = store_content(store, make_tree({"a": content}))
            write_run(store, tree, id=f"r{owner}-{number}")

    def clean(store: Any) -> None:
        start.wait()
        for _ in range(4):
            prune(store, AGE_S)

    stores = [open_store() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        works = [
            pool.submit(write, stores[0], 0),
            pool.submit(write, stores[1], 1),
            pool.submit(clean, stores[2]),
        ]
    for work in works:
        work.result()
    check = open_store()
    for content in contents:
        assert check.get_blob(hashlib.sha256(content).hexdigest()) == content
        check.get_blob(make_tree({"a": content}).sha256)


class TestCrashes:
    """After a crash at any change, the next prune ends where an undisturbed one does."""

    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("at", range(1, 6))
    def test_at_any_change(self, place, open_store, at, after):
        store = open_store()
        for number in range(3):
            store.put_blob(f"lost {number}".encode())
        kept = store.put_blob(b"kept")
        write_run(store, kept, state=RunState.SUCCEEDED)
        for name in ("big", "small"):
            put_gone(store, name)
            tell(store, f"slices/{name}", 91, 2)
        place.pass_time(AGE_S + DAY_S)
        crashing = Crashing(open_store(), CrashPoint(at, after=after), lambda name, _: name in STORE_CHANGES)
        with pytest.raises(Crash):
            prune(crashing, AGE_S)
        prune(open_store(), AGE_S)
        check = open_store()
        assert digests(check) == {kept}
        assert subjects(check) == set()
        assert [document.key for document in check.list("slices/")] == ["slices/big", "slices/small"]


def put_gone(store: Any, name: str) -> None:
    record = replace(a_slice(name=name), state=SliceState.GONE, last_incarnation=3, incarnation=None)
    store.put(record.key, to_data(record), if_generation=0)


def test_nothing_is_removed_when_a_record_cannot_be_followed(place, open_store):
    """A damaged tree could have named any blob."""
    store = open_store()
    store.put_blob(b"lost?")
    tree = store_content(store, make_tree({"a": b"a"}))
    write_run(store, tree)
    place.pass_time(AGE_S + DAY_S)
    store = open_store()

    class Damaged:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def get_blob(self, sha256: str) -> bytes:
            raise TpuctlError(f"the blob {sha256} was damaged")

    before = digests(store)
    with pytest.raises(TpuctlError, match="damaged"):
        prune(Damaged(), AGE_S)
    assert digests(store) == before


@pytest.mark.parametrize("skip", range(12))
def test_nothing_that_is_referred_to_goes_when_reading_stops_half_way(tmp_path, skip):
    """Whichever read is the first that fails: what could not be read keeps everything it may name."""
    with open_places("bucket", tmp_path) as make:
        place: Any = make(tmp_path / "state" / "store.sqlite")
        store = place.open()
        store.put_blob(b"lost")
        tree = store_content(store, make_tree({"a": b"a"}))
        write_run(store, tree)
        store.put("manifests/r1/00001", {"diff": store.put_blob(b"diff")}, if_generation=0)
        referred = digests(store) - {hashlib.sha256(b"lost").hexdigest()}
        place.pass_time(AGE_S + DAY_S)
        pruner = place.open()  # its cache is empty: everything is read
        place.sim.fault(kind="error", method="storage.get", code=7, message="denied", skip=skip, times=1)
        try:
            removed = prune(pruner, AGE_S).blobs
        except TpuctlError:
            removed = ()
        place.sim.world.faults.clear()
        assert {blob.sha256 for blob in removed} <= {hashlib.sha256(b"lost").hexdigest()}
        assert digests(store) >= referred
        for each in (store, pruner):
            each.close()


def test_one_of_many_machines_prunes_once_a_day(place, open_store):
    one, two = open_store(), open_store()
    assert prune_if_due(one, AGE_S) is not None
    assert prune_if_due(two, AGE_S) is None
    assert prune_if_due(one, AGE_S) is None


KILLED = """
import sys
from pathlib import Path
from tpuctl.state.sqlite import SqliteStore
from tpuctl.state.gc import prune
store = SqliteStore(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
prune(store, float(sys.argv[2]))
"""


def test_a_prune_that_is_killed_leaves_whole_blobs_and_goes_on(tmp_path):
    with open_places("sqlite", tmp_path) as make:
        path = tmp_path / "state" / "store.sqlite"
        place = make(path)
        store = place.open()
        kept = store.put_blob(b"kept")
        write_run(store, kept)
        for number in range(300):
            store.put_blob(f"lost {number}".encode())
        leftover = path.parent / "blobs" / "aa" / ".tmp-crashed"
        leftover.parent.mkdir(exist_ok=True)
        leftover.write_bytes(b"half")
        place.pass_time(AGE_S + DAY_S)
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path), str(AGE_S)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("go\n")
        process.stdin.flush()
        while len(digests(store)) > 250:
            pass
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert all(store.get_blob(digest) for digest in digests(store))
        prune(store, AGE_S)
        assert digests(store) == {kept}
        assert not leftover.exists()
        store.close()


def tell(store: Any, subject: str, days_ago: float, count: int = 1) -> list[str]:
    at = store.now() - days_ago * DAY_S
    return [store.append(f"journal/{subject}/", {"at": at, "action": "x"}) for _ in range(count)]


def write_ended(store: Any, name: str, days_ago: float, **fields: Any) -> None:
    ended = store.now() - days_ago * DAY_S
    write_run(store, "0" * 64, **{"state": RunState.SUCCEEDED, "ended_at": ended, "id": name, **fields})
    for group in ("manifests", "attempts"):
        store.put(f"{group}/{name}/00001", {"n": 1}, if_generation=0)
    tell(store, f"runs/{name}", days_ago, 2)


def subjects(store: Any) -> set[str]:
    return {key.removeprefix("journal/").rpartition("/")[0] for key in store.list_keys() if "journal/" in key}


def test_old_entries_go_with_the_slices_that_they_tell_of(open_store):
    store = open_store()
    live = a_slice(name="live")
    store.put(live.key, to_data(live), if_generation=0)
    put_gone(store, "gone")
    tell(store, "slices/live", 400)
    tell(store, "slices/gone", 91, 3)
    tell(store, "slices/forgotten", 91)
    (young,) = tell(store, "slices/gone", 89)
    found = find_waste(store, AGE_S)
    assert {subject: len(keys) for subject, keys in found.old.journals.items()} == {
        "slices/gone": 3,
        "slices/forgotten": 1,
    }
    assert found.words == "4 journal entries"
    prune(store, AGE_S)
    assert [document.key for document in open_store().list("journal/slices/gone/")] == [young]
    assert len(open_store().list("journal/slices/live/")) == 1
    assert prune(store, AGE_S).old.journals == {}


@pytest.mark.parametrize("at", [None, "long ago", [1]])
def test_an_entry_whose_time_is_none_keeps_no_other_from_going(open_store, at):
    store = open_store()
    tell(store, "slices/gone", 91)
    odd = store.append("journal/slices/gone/", {"at": at})
    prune(store, AGE_S)
    assert [document.key for document in store.list("journal/slices/gone/")] == [odd]


def test_runs_and_manifests_stay_when_their_journals_go(open_store):
    store = open_store()
    write_ended(store, "old", 181)
    write_ended(store, "young", 179)
    write_ended(store, "going", 0, state=RunState.RUNNING, ended_at=None)
    tell(store, "runs/going", 400)
    prune(store, AGE_S)
    check = open_store()
    assert subjects(check) == {"runs/young", "runs/going"}
    keys = set(check.list_keys())
    assert {f"{group}/old{tail}" for group, tail in (("runs", ""), ("manifests", "/00001"))} <= keys


def test_runs_go_with_all_that_is_of_them_when_a_person_asks(place, open_store):
    store = open_store()
    code = store.put_blob(b"code")
    there = a_slice(name="there")
    store.put(there.key, to_data(there), if_generation=0)
    write_ended(store, "old", 400, code=CodeState(code), slice_name="away")
    write_ended(store, "young", 300, slice_name="away")
    write_ended(store, "on-a-live-slice", 400, slice_name="there")
    write_ended(store, "of-a-fleet", 400, slice_name="away", fleet="lab", fleet_run="nightly")
    place.pass_time(AGE_S + DAY_S)
    pruner = open_store()
    year = 365 * DAY_S
    assert find_waste(pruner, AGE_S).old.runs == ()
    assert find_waste(pruner, AGE_S, runs_after_s=year).old.runs == ("old",)
    done = prune(pruner, AGE_S, runs_after_s=year)
    assert (done.old.runs, [blob.sha256 for blob in done.blobs]) == (("old",), [code])
    check = open_store()
    assert [key for key in check.list_keys() if "/old" in key] == []
    for name in ("young", "on-a-live-slice", "of-a-fleet"):
        assert check.get(f"runs/{name}") is not None
        assert check.get(f"manifests/{name}/00001") is not None


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 5))
def test_a_crash_while_a_run_is_removed_leaves_nothing_that_nobody_finds(open_store, at, after):
    store = open_store()
    write_ended(store, "old", 400)
    crashing: Any = Crashing(store, CrashPoint(at, after=after), lambda name, _: name in STORE_CHANGES)
    with pytest.raises(Crash):
        prune(crashing, AGE_S, runs_after_s=365 * DAY_S)
    prune(open_store(), AGE_S, runs_after_s=365 * DAY_S)
    assert [key for key in open_store().list_keys() if "old" in key] == []


def test_only_entries_are_removed_as_entries(open_store):
    store = open_store()
    write_ended(store, "r", 1)
    with pytest.raises(ConflictError, match="no appended entry"):
        store.remove_entries(["runs/r"])
    key = tell(store, "slices/x", 0)[0]
    store.remove_entries([key, key])
    store.remove_entries([])
    assert store.get(key) is None
    assert store.get("runs/r") is not None


@pytest.mark.parametrize("word", ["29d", "1h"])
def test_a_young_proof_is_not_given_up(word):
    with pytest.raises(UsageError, match="only proof"):
        parse_runs_age(word, "--runs-older-than")
    assert parse_runs_age("30d", "--runs-older-than") == 30 * DAY_S
