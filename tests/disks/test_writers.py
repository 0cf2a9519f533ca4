"""Writers that check themselves say what they wrote, and the judge finds what of it is lost."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support import disk_writer
from tests.support.disk_judge import Listener, judge
from tests.support.disk_writer import KINDS

COUNT = 25


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    yield made
    made.close()


def start(listener: Listener, kind: str, folder: Path, *options: str) -> subprocess.Popen[bytes]:
    words = [kind, str(folder), str(listener.port), "--to", "127.0.0.1", "--pause", "0", *options]
    return subprocess.Popen([sys.executable, disk_writer.__file__, *words])


def write(listener: Listener, kind: str, folder: Path) -> str:
    with start(listener, kind, folder, "--count", str(COUNT)) as process:
        assert process.wait(60) == 0
    tag = f"{kind}-1"
    listener.wait_for(tag, end=True)
    assert listener.said(tag).returned == set(range(1, COUNT + 1))
    return tag


def cut_lines(folder: Path, tag: str) -> None:
    path = folder / f"{tag}.lines"
    path.write_bytes(path.read_bytes()[:-200])


def drop_row(folder: Path, tag: str) -> None:
    with closing(sqlite3.connect(folder / f"{tag}.db")) as database:
        database.execute("delete from items where number = 25")
        database.commit()


def zero_file(folder: Path, tag: str) -> None:
    for number in (20, 25):
        path = folder / f"{tag}.files" / f"{number:05d}"
        path.write_bytes(bytes(path.stat().st_size))


def older(folder: Path, tag: str) -> None:
    (folder / f"{tag}.current").write_bytes(disk_writer.line_of(tag, COUNT - 1) * 500)


def zero_records(folder: Path, tag: str) -> None:
    path = folder / f"{tag}.map"
    os.truncate(path, 20 * disk_writer.RECORD)


DAMAGE: dict[str, Callable[[Path, str], None]] = {
    "append": cut_lines,
    "plain": cut_lines,
    "user": cut_lines,
    "sqlite": drop_row,
    "files": zero_file,
    "rename": older,
    "mmap": zero_records,
}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_a_writer_said_is_there_until_it_is_damaged(listener: Listener, kind: str, tmp_path: Path) -> None:
    tag = write(listener, kind, tmp_path)
    assert judge(tmp_path, listener.all_said(), orderly=True) == []
    DAMAGE[kind](tmp_path, tag)
    [lost] = judge(tmp_path, listener.all_said(), orderly=True)
    assert COUNT in lost.returned
    synced = judge(tmp_path, listener.all_said(), orderly=False)
    assert [each.returned for each in synced] == [()] * len(synced)
    assert bool(synced) is (kind not in {"plain", "user"}), "lines 24 and 25 of a user were not brought to it"


def test_what_is_not_there_at_all_is_lost_and_the_judge_says_why(listener: Listener, tmp_path: Path) -> None:
    write(listener, "append", tmp_path)
    (tmp_path / "append-1.lines").unlink()
    [lost] = judge(tmp_path, listener.all_said(), orderly=False)
    assert len(lost.synced) == COUNT
    assert "No such file" in str(lost)


def test_a_refused_write_is_tried_again(listener: Listener, tmp_path: Path) -> None:
    folder = tmp_path / "later"
    with start(listener, "plain", folder, "--count", "3") as process:
        try:
            while not listener.said("plain-1").refused:
                assert process.poll() is None
            folder.mkdir()
            listener.wait_for("plain-1", end=True)
        finally:
            process.terminate()
    assert listener.said("plain-1").returned == {1, 2, 3}
    assert listener.said("plain-1").refused[0] == "2"
    assert judge(folder, listener.all_said(), orderly=True) == []


def test_a_writer_that_stays_has_its_file_open_until_it_is_ended(listener: Listener, tmp_path: Path) -> None:
    with start(listener, "plain", tmp_path, "--count", "2", "--stay") as process:
        listener.wait_for("plain-1", end=True)
        links = [os.readlink(each) for each in Path(f"/proc/{process.pid}/fd").iterdir()]
        assert str(tmp_path / "plain-1.lines") in links
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
