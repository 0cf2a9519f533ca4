"""`mount add` looks whether a prefix has the wrong shape, and how far it looks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.clocks import FakeClock
from tests.support.memory.objects import MemoryObjects
from tpuctl.engine.events import Note
from tpuctl.errors import DeniedError
from tpuctl.model.refs import MountRef
from tpuctl.mounts.use import MANY_OBJECTS, SMALL_BYTES, note_small_objects


def said(objects: MemoryObjects, directory: str = "") -> list[str]:
    events: list[Note] = []
    services: Any = SimpleNamespace(objects=objects, emit=events.append)
    note_small_objects(services, MountRef("b", "/mnt/b", "train", directory))
    return [event.text for event in events]


@pytest.mark.parametrize(
    ("count", "size", "directory", "wrong"),
    [
        (MANY_OBJECTS, 1, "", True),
        (MANY_OBJECTS, 1, "d", True),
        (MANY_OBJECTS - 1, 1, "", False),
        (MANY_OBJECTS, SMALL_BYTES + 1, "", False),
        (MANY_OBJECTS, 1, "other", False),
    ],
)
def test_many_small_objects_are_the_wrong_shape(count: int, size: int, directory: str, wrong: bool) -> None:
    objects, content = MemoryObjects(FakeClock()), bytes(size)
    for number in range(count):
        objects.write(f"gs://b/d/{number}", content)
    notes = said(objects, directory)
    assert [("tpuctl data pack" in note, "5000 objects" in note) for note in notes] == [(True, True)] * wrong


def test_a_bucket_that_may_not_be_listed_is_mounted_without_a_word() -> None:
    class Closed(MemoryObjects):
        def list(self, *_: Any, **__: Any) -> Any:
            raise DeniedError("no")

    assert said(Closed(FakeClock())) == []
