"""Moving a store into a bucket: whatever breaks off and whichever answer is lost, the same command goes on,
nothing is lost and nothing is there twice."""

from __future__ import annotations

from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

from tests.support.crashing import STORE_CHANGES, Crash, Crashing, CrashPoint
from tests.support.sim import RunningSim
from tests.support.soak import soak
from tpuctl.cloud.storage import GoogleObjects
from tpuctl.errors import BadConfigError, ConflictError
from tpuctl.model.records import MOVED
from tpuctl.state.bucket import BucketStore, read_identity
from tpuctl.state.migrate import copy_store, move_store
from tpuctl.state.sqlite import SqliteStore

URI = "gs://sim-bucket/fleet"
OBJECT_CHANGES = {"write", "delete"}
CHANGES = 9
"""Of moving two documents, two entries and two blobs: the claim and the mark, the announcement and its end."""


class Move:
    """One machine that moves its store, again and again, each time as a new process."""

    def __init__(self, sim: RunningSim, folder: Path) -> None:
        self.objects: Any = GoogleObjects(sim.profile["project"], sim.endpoint, Credentials(token=sim.token))
        self._folder = folder
        self.cache = folder / "cache"
        with closing(self.source()) as source:
            for name in ("big", "small"):
                source.put(f"slices/{name}", {"name": name, "text": "ü"}, if_generation=0)
            for number in range(2):
                source.append("journal/slices/big", {"n": number})
                source.put_blob(f"content {number}".encode())
            self.documents = {document.key: document.data for document in source.list("")}
            self.blobs = {blob.sha256: source.get_blob(blob.sha256) for blob in source.list_blobs()}
            self.identity = source.identity()

    def source(self) -> SqliteStore:
        return SqliteStore(self._folder / "store.sqlite")

    def target(self, objects: Any = None, *, unborn: bool = False, uri: str = URI) -> BucketStore:
        return BucketStore(objects or self.objects, uri, self.cache, sleep=lambda _: None, unborn=unborn)

    def type(self, point: CrashPoint | None = None, uri: str = URI) -> int:
        """`config init --store`, as far as it gets; how many changes it made."""
        point = point or CrashPoint()
        objects = Crashing(self.objects, point, lambda name, _: name in OBJECT_CHANGES)
        with closing(self.source()) as inner, closing(self.target(objects, unborn=True, uri=uri)) as target:
            source: Any = Crashing(inner, point, lambda name, _: name in STORE_CHANGES)
            move_store(source, target, uri, "lab", alive=lambda _: False, report=lambda _: None)
        return point.count

    def expect_all_there(self) -> None:
        with closing(self.target()) as store:
            assert {document.key: document.data for document in store.list("")} == self.documents
            assert {blob.sha256: store.get_blob(blob.sha256) for blob in store.list_blobs()} == self.blobs
            assert store.identity() == self.identity
            assert [entry.data["n"] for entry in store.list("journal/slices/big/")] == [0, 1]
        with closing(self.source()) as source:
            assert source.get(MOVED).data == {"to": URI, "done": True}


@pytest.fixture
def move(sim: RunningSim, tmp_path: Path) -> Move:
    folder = tmp_path / "state"
    folder.mkdir()
    return Move(sim, folder)


def test_the_second_time_nothing_is_changed(move: Move) -> None:
    assert move.type() == CHANGES + 1
    move.expect_all_there()
    listed = {info.name: info.generation for info in move.objects.list(URI)}
    assert move.type() <= 1, "the mark is only tried"
    assert {info.name: info.generation for info in move.objects.list(URI)} == listed
    move.expect_all_there()


def kills(last: int) -> list[Any]:
    """(at, after): before every change, and after the last two. After another is, but for the time, before the
    next."""
    early = [soak(at, True) for at in range(1, last - 1)]
    return [*((at, False) for at in range(1, last + 1)), (last - 1, True), (last, True), *early]


@pytest.mark.parametrize(("at", "after"), kills(CHANGES + 1))
def test_a_crash_at_any_change_is_gone_on_from(move: Move, at: int, after: bool) -> None:
    with pytest.raises(Crash):
        move.type(CrashPoint(at, after=after))
    born = read_identity(move.objects, URI) is not None
    assert born == (at > CHANGES and after), "no store before all of it is there"
    with closing(move.source()) as source:
        if source.get(MOVED) is not None:
            with pytest.raises(BadConfigError, match="moves to"):
                source.put("slices/late", {}, if_generation=0)
    move.type()
    move.expect_all_there()


@pytest.mark.parametrize("at", [CHANGES + 1, *(soak(at) for at in range(1, CHANGES + 1))])
def test_crashes_one_after_the_other_are_gone_on_from(move: Move, at: int) -> None:
    for again in range(at, 0, -1):
        try:
            move.type(CrashPoint(again, after=True))
        except Crash:
            continue
    move.type()
    move.expect_all_there()


def test_a_store_whose_opening_was_not_written_down_here_is_not_copied_over(move: Move) -> None:
    with pytest.raises(Crash):
        move.type(CrashPoint(CHANGES + 1, after=True))
    with closing(move.target()) as joined:
        small, big = joined.get("slices/small"), joined.get("slices/big")
        joined.delete("slices/small", if_generation=small.generation)
        joined.put("slices/big", {"name": "big", "text": "newer"}, if_generation=big.generation)
    move.type()
    with closing(move.target()) as store:
        assert store.get("slices/small") is None
        assert store.get("slices/big").data["text"] == "newer"
    with closing(move.source()) as source:
        assert source.get(MOVED).data == {"to": URI, "done": True}


def test_a_store_that_was_lost_after_its_move_is_copied_again(move: Move) -> None:
    move.type()
    for info in move.objects.list(URI):
        move.objects.delete(f"gs://sim-bucket/{info.name}")
    move.type()
    move.expect_all_there()


PRESETS = ("storage-lost-response", "storage-unavailable", "storage-rate-limit")
IN_TURN = [(skip, PRESETS[skip % 3]) for skip in range(8)]
"""Which answer and how: each of either."""


@pytest.mark.parametrize(
    ("skip", "preset"),
    [*IN_TURN, *(soak(*each) for each in product(range(8), PRESETS) if each not in IN_TURN)],
)
def test_an_answer_that_is_lost_or_refused_is_asked_for_again(
    move: Move, sim: RunningSim, skip: int, preset: str
) -> None:
    sim.fault(preset=preset, method="storage.post", skip=skip)
    move.type()
    move.expect_all_there()


def test_every_answer_is_lost_once(move: Move, sim: RunningSim) -> None:
    for skip in range(0, 16, 2):
        sim.fault(preset="storage-lost-response", method="storage.post", skip=skip)
    move.type()
    move.expect_all_there()


def test_a_command_that_had_the_store_open_cannot_write_into_what_was_copied(move: Move) -> None:
    """Its slice would be unknown to the fleet, and would cost money."""
    with closing(move.source()) as early:
        big = early.get("slices/big")
        (blob, *_) = early.list_blobs()
        move.type()
        for change in (
            lambda: early.put("slices/new", {}, if_generation=0),
            lambda: early.put("slices/big", {}, if_generation=big.generation),
            lambda: early.delete("slices/big", if_generation=big.generation),
            lambda: early.append("journal/slices/big", {}),
            lambda: early.remove_blob(blob),
        ):
            with pytest.raises(BadConfigError, match=f"this fleet's store moves to {URI}") as refused:
                change()
            assert "tpuctl config init --store" in (refused.value.hint or "")
        assert early.get("slices/big") == big
    move.expect_all_there()


def test_two_stores_that_move_to_one_place_do_not_mix(move: Move, sim: RunningSim, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Move(sim, tmp_path / "other")
    with pytest.raises(Crash):
        move.type(CrashPoint(4))
    with pytest.raises(ConflictError, match="another fleet's store"):
        other.type()
    with closing(other.source()) as source:
        source.put("slices/still-works", {}, if_generation=0)
    move.type()
    move.expect_all_there()
    with pytest.raises(ConflictError, match="another fleet's store"):
        other.type()
    move.expect_all_there()


@pytest.mark.parametrize("at", range(1, CHANGES + 2))
def test_a_move_goes_to_another_place_until_all_of_it_is_at_the_first(move: Move, at: int) -> None:
    other = "gs://no-such-bucket/fleet"
    with closing(move.source()) as source:
        source.put(MOVED, {"to": other, "done": False}, if_generation=0)
    with pytest.raises(Crash):
        move.type(CrashPoint(at))
    with closing(move.source()) as source:
        assert source.get(MOVED).data["to"] == (other if at <= 2 else URI)
    move.type()
    move.expect_all_there()
    with pytest.raises(ConflictError, match="already moved"):
        move.type(uri="gs://sim-bucket/third")
    assert not list(move.objects.list("gs://sim-bucket/third"))


def test_a_long_copy_says_how_far_it_is(tmp_path: Path) -> None:
    said: list[str] = []
    with (
        closing(SqliteStore(tmp_path / "a.sqlite")) as source,
        closing(SqliteStore(tmp_path / "b.sqlite")) as to,
    ):
        for number in range(60):
            source.put(f"runs/r{number:02}", {"n": number}, if_generation=0)

        class Target:
            """A store that also takes documents of another, as one in a bucket does."""

            def __getattr__(self, name: str) -> Any:
                return getattr(to, name)

            def take_document(self, key: str, data: dict[str, Any]) -> None:
                to.put(key, data, if_generation=0)

        assert copy_store(source, Target(), said.append) == 60  # type: ignore[arg-type]
    assert said[0] == "copying 60 documents and 0 blobs"
    assert said[1:] == [f"copied {6 * tenth} of 60 documents" for tenth in range(1, 10)] + ["comparing"]
