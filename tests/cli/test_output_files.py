"""Files that commands write: never over a file of another kind, a device or a link, and whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.session import Session, open_session
from tpuctl.cli.commands.exec import WorkerFiles
from tpuctl.errors import TpuctlError

pytestmark = pytest.mark.slow

WRITERS = {
    "report": ("report", "one", "-o"),
    "bundle": ("manifest", "export", "one", "-o"),
    "slsa": ("manifest", "export", "one", "--as", "slsa", "--to"),
    "mlflow": ("manifest", "export", "one", "--as", "mlflow", "--to"),
    "rocrate": ("manifest", "export", "one", "--as", "rocrate", "--to"),
    "picture": ("capacity", "--plot"),
    "receipt": ("bill", "--receipt"),
}
STATUS = {"receipt": 1}
"""A bill of a slice that is to be paid ends with 1."""
ENDINGS = {"report": "html", "bundle": "tar", "picture": "svg"}
NOTES = "my notes\n"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as made:
        made.type("up", "v4-8", "small", "--spot", "--pay")
        made.type("run", "--on", "small", "--name", "one", "--no-checkpoint", "--", "true")
        yield made


@pytest.fixture(params=WRITERS)
def writer(request, tmp_path) -> tuple[tuple[str, ...], int, Path]:
    name = request.param
    return WRITERS[name], STATUS.get(name, 0), tmp_path / f"out.{ENDINGS.get(name, 'json')}"


def test_a_missing_folder_is_made_and_an_earlier_file_of_the_kind_is_replaced(session, writer, tmp_path):
    words, status, path = writer
    path = tmp_path / "a/b" / path.name
    session.type(*words, str(path), status=status)
    assert path.stat().st_size > 0
    assert path.stat().st_nlink == 1
    assert stat.S_IMODE(path.stat().st_mode) & 0o400
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    first = path.stat().st_ino
    if words[0] == "bill":
        said = session.type(*words, str(path), status=2).stderr
        assert "the file exists" in said
        assert path.stat().st_ino == first
    else:
        session.type(*words, str(path), status=status)
        assert path.stat().st_ino != first


def test_a_file_of_another_kind_is_replaced_when_told_alone(session, writer):
    words, status, path = writer
    path.write_text(NOTES)
    refused = session.type(*words, str(path), status=2).stderr
    assert path.read_text() == NOTES
    if words[0] == "bill":
        assert "--overwrite" not in refused
        return
    assert "--overwrite" in refused
    session.type(*words, str(path), "--overwrite", status=status)
    assert NOTES.encode() not in path.read_bytes()


def test_links_devices_and_folders_are_never_replaced(session, writer, tmp_path):
    words, _, path = writer
    told = () if words[0] == "bill" else ("--overwrite",)
    notes = tmp_path / "notes"
    notes.write_text(NOTES)
    path.symlink_to(notes)
    said = " ".join(session.type(*words, str(path), *told, status=2).stderr.split())
    assert "it is a link" in said
    assert path.is_symlink()
    path.unlink()
    path.symlink_to(tmp_path / "nothing")
    session.type(*words, str(path), *told, status=2)
    assert path.is_symlink()
    path.unlink()
    os.mkfifo(path)
    said = " ".join(session.type(*words, str(path), *told, status=2).stderr.split())
    assert "no regular file" in said
    assert path.is_fifo()
    path.unlink()
    path.mkdir()
    assert "it is a directory" in " ".join(session.type(*words, str(path), *told, status=2).stderr.split())
    below = str(notes / path.name)
    session.type(*words, below, *told, status=2)
    assert notes.read_text() == NOTES
    assert {each.name for each in tmp_path.iterdir()} == {"notes", path.name}


def test_a_device_stays_one(session):
    for words in (WRITERS["report"], WRITERS["bundle"], WRITERS["slsa"]):
        session.type(*words, "/dev/full", "--overwrite", status=2)
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_files_of_workers_are_no_links(session, tmp_path):
    notes, link = tmp_path / "notes", tmp_path / "out/worker-0.stdout"
    link.parent.mkdir()
    notes.write_text(NOTES)
    link.symlink_to(notes)
    session.type("exec", "small", "--output-dir", str(link.parent), "--", "echo", "hello", status=2)
    assert notes.read_text() == NOTES
    link.unlink()
    session.type("exec", "small", "--output-dir", str(link.parent), "--", "echo", "hello")
    assert link.read_text() == "hello\n"


def test_an_environment_is_not_written_through_a_link(session, tmp_path):
    notes, link = tmp_path / "notes", session.work / "envs/mine.yaml"
    link.parent.mkdir()
    notes.write_text(NOTES)
    link.symlink_to(notes)
    session.type("env", "new", "mine", "--backend", "cpu", "--no-lock", status=2)
    assert notes.read_text() == NOTES
    assert link.is_symlink()


class FilesOnAFullDisk(WorkerFiles):
    def path(self, worker: int, stream: str) -> Path:
        return Path("/dev/full")


@pytest.mark.parametrize("count", [1, 1 << 20], ids=["at-the-end", "at-once"])
def test_output_for_which_a_disk_has_no_room_names_it_and_what_to_type(tmp_path, count):
    files = FilesOnAFullDisk(tmp_path, "--output-dir")

    def keep():
        files.write(0, "stdout", b"x" * count)
        files.close()

    with pytest.raises(TpuctlError, match="/dev/full: no space left on device") as refused:
        keep()
    assert refused.value.hint == "free some space on that disk: df -h /dev"
