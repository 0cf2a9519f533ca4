"""The index of a collection, and what of a folder is taken."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from tpuctl.collect.collect import LEAST, begins_collection, parse_limit
from tpuctl.collect.collection import KEPT_FREE, Collection, share_room
from tpuctl.collect.index import Index, Item, Missing, choose_files, choose_newest, render_index
from tpuctl.errors import TpuctlError, UsageError
from tpuctl.lib.text import parse_sized, sized
from tpuctl.model.shipped_files import load_secret_patterns
from tpuctl.transfer.tree import Blob, TreeFile, TreeFolder, TreeLink

TOP = TreeFolder("", 0o700)
INDEX = Index(
    run="r1",
    slice="big",
    made="2026-11-26T09:00:00Z",
    tpuctl="1.0",
    status={
        "state": "failed",
        "reason": "worker 1 exited with 1",
        "failure": {"signature": "no-memory", "remedy": "a smaller `batch`\nor so"},
        "command": ["python3", "train.py"],
        "workers": [
            {"worker": 0, "state": "exit 0", "last_line": ""},
            {"worker": 1, "state": "exit 0", "last_line": ""},
            {"worker": 2, "state": "exit 1", "last_line": "RESOURCE_EXHAUSTED"},
        ],
    },
    decisions=[{"at": "9:00", "subject": "r1", "action": "ended", "reason": "it failed"}],
    limit_bytes=2 << 30,
    host_bytes=1 << 20,
)


def files(*rows: tuple[str, int, int]) -> list[TreeFile]:
    return [TreeFile(name, 0o600, Blob("", size), mtime) for name, size, mtime in rows]


@pytest.mark.parametrize(
    ("found", "budget", "kept"),
    [
        (files(("a", 10, 1), ("b", 20, 1)), 30, ["a", "b"]),
        (files(("a", 10, 1), ("b", 20, 1)), 29, ["a"]),
        (files(("old", 10, 1), ("new", 10, 2)), 10, ["new"]),
        (files(("large", 50, 9), ("small", 1, 1)), 5, ["small"]),
        (files(("empty", 0, 1)), 0, ["empty"]),
        (files(("a", 1, 1)), -1, []),
    ],
    ids=["all", "largest-first", "then-oldest", "small-though-older", "nothing-left", "less-than-nothing"],
)
def test_what_does_not_fit_is_left_out_the_largest_and_oldest_first(found, budget, kept):
    chosen = choose_files([TOP, *found, TreeLink("link", "a")], budget)
    assert [entry.path for entry in chosen] == ["", *kept], "folders stay, links do not"


def test_no_more_files_are_taken_than_may_be():
    assert len(choose_files(files(*((f"f{n}", 1, n) for n in range(5))), 100, files_max=2)) == 2


@pytest.mark.parametrize(
    ("files_max", "since", "kept"),
    [(9, 0, ["a", "b", "c"]), (9, 2, ["b", "c"]), (1, 0, ["b"]), (9, 4, []), (0, 0, [])],
    ids=["all", "since-then", "the-newest", "all-are-older", "none"],
)
def test_of_files_that_others_leave_there_the_newest_since_the_run_began_come(files_max, since, kept):
    found = [TOP, *files(("a", 10, 1), ("b", 20, 3), ("c", 1, 2))]
    assert [entry.path for entry in choose_newest(found, files_max, since)] == ["", *kept]


@pytest.mark.parametrize(
    ("limit", "free", "hosts", "host_bytes"),
    [
        (400, 1 << 40, 2, 150),
        (1 << 40, KEPT_FREE + 800, 2, 150),
        (400, KEPT_FREE - 1, 2, 0),
        (400, 1 << 40, 0, 300),
    ],
    ids=["as-asked", "a-full-disk-here", "no-room-here", "no-host"],
)
def test_hosts_share_what_was_asked_for_as_far_as_this_disk_goes(limit, free, hosts, host_bytes):
    assert share_room(limit, free, hosts).host_bytes == host_bytes


def test_the_index_says_how_it_stands_what_is_there_and_what_is_missing():
    items = (
        Item("hosts/worker-0/attempt-1/dumps", "dumps", "an editor", 0, 1, files=2, size_bytes=2048),
        Item("hosts/worker-1/attempt-1/dumps", "dumps", "an editor", 1, 1, 1, 10, 3, 4096, "no room"),
    )
    missing = (
        Missing("logs", "silent", 2, 1),
        Missing("logs", "silent", 3, 1),
        Missing("stacks", "it is over"),
    )
    told = render_index(replace(INDEX, items=items, missing=missing, interrupted=True))
    for line in (
        "# Run r1 on big",
        "**Interrupted: what came until then is here, all else is missing.**",
        "- because: worker 1 exited with 1",
        "- what helps: a smaller 'batch' or so",
        "- worker 0-1: exit 0",
        "- worker 2: exit 1, last line `RESOURCE_EXHAUSTED`",
        "- 9:00 r1 ended: it failed",
        "- **dumps** (3 files, 2.0 KiB): an editor",
        "  - `hosts/worker-1/attempt-1/dumps` without 3 files (4.0 KiB): no room",
        "- logs of attempt 1, worker 2-3: silent",
        "- stacks: it is over",
    ):
        assert line in told.splitlines()


def test_what_32_hosts_have_alike_has_one_line():
    names = ("attempts.json", "host.txt", "attempt-1/driver-logs", "attempt-1/dumps")
    items = [Item(f"hosts/worker-{n}/{name}", name, "text", n) for name in names for n in range(32)]
    items = [
        replace(item, older_files=286 if item.what.endswith("logs") else 0, cut_files=item.worker % 2)
        for item in items
    ]
    missing = tuple(Missing("stacks", f"big-{n} did not answer in 5 s", n) for n in range(32))
    logs = Item("logs/attempt-1/worker-3.stdout.log", "logs", "text", 3, 1)
    lines = render_index(replace(INDEX, items=(*items, logs), missing=missing)).splitlines()
    assert len(lines) < 60
    assert "  - `logs/attempt-1/worker-3.stdout.log`" in lines
    assert "- stacks of worker 0-31: did not answer in 5 s" in lines
    folded = "  - `hosts/worker-N/attempt-1/driver-logs` (workers 0-31) without 9152 older files"
    assert [line for line in lines if line.startswith(folded) and "without 16 files (0 B)" in line]


@pytest.mark.parametrize("size", [0, 1023, 1536, 5 << 20, 3 << 30])
def test_sizes_are_read_as_they_are_written(size):
    assert parse_sized(sized(size)) == size


def test_a_limit_is_a_size_with_room_for_something():
    assert parse_limit("2GiB") == 2 << 30
    assert parse_limit("1.5 g") == 3 << 29
    for text, words in (("much", "'much' is no size"), ("-1G", "is no size"), (f"{LEAST - 1}", "too small")):
        with pytest.raises(UsageError, match=words):
            parse_limit(text)


# ---------------------------------------------------------------- the file


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    folder = tmp_path / "spool"
    folder.mkdir()
    return Collection(folder, load_secret_patterns(), 1 << 30, 1)


def test_the_file_begins_with_its_index_is_private_and_has_no_secret(collection, tmp_path):
    token = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0" + "dE"
    collection.keep("a.txt", f"token {token}\n".encode(), "a file", "text")
    collection.lacks("logs", f"refused: {token}")
    folder = collection.expect(Item("dumps", "dumps", "text", 0, 1))
    (folder / "0").mkdir(parents=True)
    (folder / "0" / "module.txt").write_text(f"x {token}\n" * 3)
    binary = b"\0" + token.encode()
    (folder / "0" / "module.o").write_bytes(binary)
    os.symlink("/etc/passwd", folder / "link")
    collection.expect(Item("nothing", "nothing came", "text"))
    path = tmp_path / "out" / "r1.tar"
    index = collection.write(collection.finish(INDEX), path, "-o")
    assert [item.path for item in index.items] == ["a.txt", "dumps"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert begins_collection(path.read_bytes()[:512])
    with tarfile.open(path) as archive:
        names = archive.getnames()
        contents = {name: archive.extractfile(name).read() for name in names}  # type: ignore[union-attr]
    assert names == ["INDEX.md", "index.json", "a.txt", "dumps/0/module.o", "dumps/0/module.txt"]
    assert not any(token.encode() in contents[name] for name in ("INDEX.md", "index.json"))
    assert contents["a.txt"] == b"token ***\n"
    assert contents["dumps/0/module.txt"] == b"x ***\n" * 3
    assert contents["dumps/0/module.o"] == binary, "what is no text is as it was"
    data = json.loads(contents["index.json"])
    assert data["schema"] == 1
    assert data["items"][1]["files"] == 2
    assert data["items"][1]["size_bytes"] == len(binary) + 18


def test_a_file_is_text_or_not_by_its_beginning_not_by_that_of_a_piece(collection, monkeypatch):
    monkeypatch.setattr("tpuctl.collect.collection.LINES_AT_ONCE", 2048)
    token = "hf_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0" + "dE"
    file = collection.expect(Item("a.log", "a log", "text"))
    file.write_bytes(b"x" * 2047 + b"\n" + b"\0 torn\n" + f"{token}\n".encode())
    collection.finish(INDEX)
    assert file.read_bytes().endswith(b"\0 torn\n***\n")


def test_what_cannot_be_written_here_is_missing(collection):
    (collection.folder / "logs").write_text("in the way")
    collection.keep("logs/a.log", b"x", "logs", "text", worker=3)
    index = collection.finish(INDEX)
    assert index.items == ()
    assert index.missing == (Missing("logs", "it cannot be written here: File exists", 3),)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one MiB."""
    if os.geteuid():
        pytest.skip("needs root, to mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_of_what_does_not_fit_on_this_disk_the_largest_is_left_out(small_disk):
    (small_disk / "spool").mkdir()
    much = Collection(small_disk / "spool", load_secret_patterns(), 1 << 30, 1, free=lambda _: 1 << 40)
    for name, size in (("large", 400), ("small", 20), ("middle", 100)):
        much.keep(name, bytes(size << 10), f"the {name} one", "text")
    much.keep("too-large", bytes(1 << 20), "the one that never fits", "text")
    path = small_disk / "r1.tar"
    index = much.write(much.finish(INDEX), path, "-o")
    assert [item.path for item in index.items] == ["small", "middle"]
    assert index.missing == (
        Missing("the one that never fits", "it cannot be written here: No space left on device"),
        Missing("the large one", "this machine's disk is full"),
    )
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["INDEX.md", "index.json", "small", "middle"]
    with suppress(OSError), (small_disk / "fill").open("wb") as fill:
        while True:
            fill.write(bytes(1 << 12))
            fill.flush()
    with pytest.raises(TpuctlError, match="no space left on device") as caught:
        much.write(index, small_disk / "other.tar", "-o")
    assert "df -h" in str(caught.value.hint)
