"""Which file goes into which shard, and that shards are tar files as tarfile makes and reads them."""

from __future__ import annotations

import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from tests.datasets.files import unpack
from tpuctl.datasets.folder import list_files, stream_shard
from tpuctl.datasets.plan import (
    FORMAT,
    MEGABYTE,
    PackedShard,
    Shard,
    difference,
    header,
    in_order,
    parse_manifest,
    plan_pack,
    render_manifest,
    sample_key,
)
from tpuctl.errors import TpuctlError, UsageError


@pytest.mark.parametrize(
    ("name", "key", "odd"),
    [
        ("7.jpg", "7", False),
        ("7.seg.png", "7", False),
        ("a/b/7.jpg", "a/b/7", False),
        ("v1.0/7.jpg", "v1.0/7", False),
        ("a/README", "a/README", True),
        ("a/.hidden", "a/.hidden", True),
        ("7.", "7", False),
    ],
)
def test_key_of_a_sample(name: str, key: str, odd: bool) -> None:
    assert (sample_key(name), plan_pack([(name, 1)]).odd) == (key, odd)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("a/7.jpg", 0),
        ("a/7.jpg", 1234567),
        ("x" * 100, 8**11 - 1),
        ("x" * 101, 5),
        ("d/" * 200 + "7.jpg", 5),
        ("ä/7.jpg", 5),
        ("7.jpg", 8**11),
        ("line\nbreak", 1),
    ],
)
def test_a_header_is_that_of_tarfile(name: str, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = size
    assert header(name.encode(), size) == info.tobuf(tarfile.PAX_FORMAT)


def test_the_order_of_a_folder_is_by_sample_and_then_by_name() -> None:
    dice = random.Random(3)
    names = {"".join(dice.choices("a.-Aä", k=dice.randrange(1, 6))) for _ in range(2000)} - {".", ".."}
    assert in_order(names) == sorted(names, key=lambda name: (sample_key(name), name))


def sizes_of(samples: list[int], shard_mb: int = 150) -> list[list[int]]:
    """The samples, of so many MB, by shard."""
    plan = plan_pack(((f"{n:04d}.bin", mb * MEGABYTE) for n, mb in enumerate(samples)), shard_mb)
    return [[size // MEGABYTE for size in shard.sizes] for shard in plan.shards]


@pytest.mark.parametrize(
    ("samples", "shards"),
    [
        ([], []),
        ([1], [[1]]),
        ([60] * 4, [[60, 60, 60], [60]]),
        ([90] * 4, [[90, 90], [90, 90]]),
        ([120, 120, 30], [[120], [120, 30]]),
        ([500, 1, 500], [[500], [1], [500]]),
        ([10] * 32, [[10] * 15, [10] * 15, [10] * 2]),
    ],
)
def test_shards_are_of_100_to_200_mb_where_samples_allow_it(
    samples: list[int], shards: list[list[int]]
) -> None:
    assert sizes_of(samples) == shards


def test_no_sample_is_split_and_every_file_is_in_one_shard() -> None:
    dice = random.Random(7)
    kinds = ("jpg", "json", "seg.png")
    named = [f"{n:03d}{gap}.{kind}" for n in range(300) for gap in ("", "-x") for kind in kinds]
    dice.shuffle(named)
    files = [(name, dice.randrange(40_000)) for name in in_order(named)]
    plan = plan_pack(files, 1)
    assert len(plan.shards) > 5
    assert [name for shard in plan.shards for name in shard.names] == [name for name, _ in files]
    where = [{sample_key(name) for name in shard.names} for shard in plan.shards]
    assert sum(map(len, where)) == len(set().union(*where)) == 600
    assert sum(shard.samples for shard in plan.shards) == 600
    assert [shard.name for shard in plan.shards[:2]] == ["shard-000000.tar", "shard-000001.tar"]


def test_the_digest_of_the_listing_is_of_names_and_sizes() -> None:
    def digest(*files: tuple[str, int]) -> str:
        return plan_pack(files).listing_sha256

    first = digest(("a.x", 1), ("b.x", 2))
    assert first == digest(("a.x", 1), ("b.x", 2))
    assert len({first, digest(("a.x", 1), ("b.x", 3)), digest(("a.x", 1), ("c.x", 2)), digest(("a.x", 1))}) == 4


def test_a_manifest_is_read_as_it_was_written() -> None:
    row = PackedShard("shard-000000.tar", 10240, 1, 1, "ab" * 32, "AAAAAA==")
    plan = plan_pack([("a.x", 5)])
    for manifest in (plan.manifest(), plan.manifest([row])):
        assert parse_manifest(render_manifest(manifest)) == manifest
    assert (plan.manifest().complete, plan.manifest([row]).complete) == (False, True)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"\xff", b'{"format":"other/1"}', f'{{"format":"{FORMAT}"}}'.encode()]
)
def test_what_is_no_manifest(content: bytes) -> None:
    assert parse_manifest(content) is None


def test_in_what_an_object_differs() -> None:
    row = PackedShard("shard-000000.tar", 10240, 1, 1, "ab" * 32, "AAAAAA==")
    assert difference(row, 10240, "AAAAAA==") is None
    assert "10.0 KiB" in str(difference(row, 5, "AAAAAA=="))
    assert "crc32c" in str(difference(row, 10240, "BBBBBB=="))


def folder_of(root: Path, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(root)


def whole(folder: str, shard: Shard) -> bytes:
    return b"".join(stream_shard(folder, shard, lambda *_: None))


def test_a_shard_has_the_planned_size_and_unpacks_to_the_same_files(tmp_path: Path) -> None:
    files = {
        "a/7.jpg": b"picture",
        "a/7.json": b"{}",
        "empty.txt": b"",
        "block.bin": bytes(range(256)) * 2,
        "big.bin": os.urandom(3 << 20),
        "ä.txt": "ä".encode(),
        "long/" + "n" * 150 + ".txt": b"long",
        "README": b"no extension",
    }
    folder = folder_of(tmp_path / "d", files)
    (tmp_path / "d" / "link.txt").symlink_to("a/7.json")
    plan = plan_pack(list_files(folder))
    (shard,) = plan.shards
    told: list[tuple[int, int]] = []
    pieces = list(stream_shard(folder, shard, lambda count, done: told.append((count, done))))
    content = b"".join(pieces)
    assert unpack(content) == {**files, "link.txt": b"{}"}
    assert len(content) == shard.size == sum(count for count, _ in told)
    assert sum(done for _, done in told) == len(shard.names)
    assert max(map(len, pieces)) < 3 << 20
    assert plan.odd == 1


def test_the_same_files_make_the_same_bytes(tmp_path: Path) -> None:
    files = {f"{n}.txt": b"x" * n for n in range(50)}
    first = folder_of(tmp_path / "one", files)
    second = folder_of(tmp_path / "two", dict(reversed(files.items())))
    os.utime(f"{second}/3.txt", (1, 1))
    os.chmod(f"{second}/4.txt", 0o600)
    made = [whole(folder, plan_pack(list_files(folder)).shards[0]) for folder in (first, second)]
    assert made[0] == made[1]
    with tarfile.open(fileobj=io.BytesIO(made[0])) as tar:
        found = {(info.mtime, info.uid, info.gid, info.uname, info.mode) for info in tar}
    assert found == {(0, 0, 0, "", 0o644)}


@pytest.mark.parametrize("change", ["grow", "shrink", "remove"])
def test_a_file_that_changes_meanwhile_is_named(tmp_path: Path, change: str) -> None:
    folder = folder_of(tmp_path, {"a.txt": b"12345"})
    (shard,) = plan_pack(list_files(folder)).shards
    path = tmp_path / "a.txt"
    path.unlink() if change == "remove" else path.write_bytes(b"1" * (6 if change == "grow" else 4))
    with pytest.raises(TpuctlError, match=r"a\.txt") as caught:
        whole(folder, shard)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda root: os.mkfifo(root / "pipe"), "pipe is no regular file"),
        (lambda root: (root / "gone").symlink_to("nowhere"), "gone cannot be read"),
        (lambda root: (root / "up").symlink_to(".."), "up is a link to a folder"),
        (lambda root: open(os.fsencode(root) + b"/\xff.txt", "w").close(), r"xff.txt is not UTF-8"),
    ],
)
def test_what_cannot_be_packed_is_named(tmp_path: Path, make: object, said: str) -> None:
    make(tmp_path)  # type: ignore[operator]
    with pytest.raises(UsageError, match=said) as caught:
        list(list_files(str(tmp_path)))
    assert caught.value.hint
