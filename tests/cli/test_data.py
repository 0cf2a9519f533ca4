"""`tpuctl data`: small files into shards in the simulator's bucket and back, cut off, damaged and refused."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

from tests.datasets.files import unpack
from tests.support.session import Session, open_session
from tests.support.soak import soak
from tpuctl.cloud.storage import GoogleObjects

FILES = 2_000
PACK = "gs://sim-bucket/pack"
SMALL = ("--shard-size", "1")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as made:
        dice = random.Random(5)
        for number in range(FILES // 2):
            folder = made.work / "data" / f"{number % 7}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:05d}.bin").write_bytes(dice.randbytes(dice.randrange(3_000)))
            (folder / f"{number:05d}.json").write_text(f'{{"label": {number}}}')
        made.type("data", "pack", "data", PACK, *SMALL)
        yield made


@pytest.fixture(scope="module")
def objects(session: Session) -> GoogleObjects:
    info = session.sim()
    return GoogleObjects(info.project, info.http, Credentials(token=info.token))


def contents(objects: GoogleObjects, uri: str) -> dict[str, bytes]:
    """Every object below `uri`, by its name there."""
    prefix = uri.split("/", 3)[3] + "/"
    return {
        info.name.removeprefix(prefix): b"".join(objects.read_pieces(f"gs://sim-bucket/{info.name}"))
        for info in objects.list(f"{uri}/")
    }


def shards(objects: GoogleObjects, uri: str) -> dict[str, bytes]:
    found = contents(objects, uri)
    return {name: content for name, content in found.items() if name.endswith(".tar")}


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def problems(session: Session, *words: str) -> dict[str, str]:
    """What `data verify` says that differs."""
    done = session.type("data", "verify", PACK, *words, "--json", status=3)
    rows: list[dict[str, Any]] = json.loads(done.stdout)["error"]["details"]["shards"]
    return {row["shard"]: row["problem"] for row in rows}


def test_what_is_unpacked_is_what_was_packed(session: Session, objects: GoogleObjects) -> None:
    found: dict[str, bytes] = {}
    for content in shards(objects, PACK).values():
        files = unpack(content)
        assert not found.keys() & files.keys()
        found |= files
    assert found == files_below(session.work / "data")
    assert len(found) == FILES


def test_the_manifest_has_what_is_in_the_bucket(session: Session, objects: GoogleObjects) -> None:
    found = session.json("data", "ls", PACK)
    assert found["pack"]["complete"] is True
    assert (found["pack"]["files"], found["pack"]["samples"]) == (FILES, FILES // 2)
    known = {info.name.rpartition("/")[2]: info for info in objects.list(f"{PACK}/shard-")}
    for row in found["shards"]:
        assert (row["size"], row["crc32c"]) == (known[row["name"]].size, known[row["name"]].crc32c)
        content = b"".join(objects.read_pieces(f"{PACK}/{row['name']}"))
        assert row["sha256"] == hashlib.sha256(content).hexdigest()
    assert len(found["shards"]) == len(known) > 2
    assert {row["uri"] for row in session.json("data", "ls", "gs://sim-bucket")["packs"]} >= {PACK}


def test_the_same_again_sends_nothing(session: Session, objects: GoogleObjects) -> None:
    before = {info.name: info.generation for info in objects.list(f"{PACK}/")}
    found = json.loads(session.type("data", "pack", "data", PACK, *SMALL, "--json").stdout)
    assert found["sent"] == 0
    assert {info.name: info.generation for info in objects.list(f"{PACK}/")} == before


@pytest.mark.parametrize(
    ("at", "when"), [(3, "after"), soak(1, "before"), soak(1, "after"), soak(2, "before"), soak(5, "before")]
)
def test_a_pack_that_was_killed_goes_on(session: Session, objects: GoogleObjects, at: int, when: str) -> None:
    uri = f"gs://sim-bucket/killed-{at}-{when}"
    died = session.type_killed(at, when, "data", "pack", "data", uri, *SMALL)
    assert died.returncode == -9
    there = {info.name: info.generation for info in objects.list(f"{uri}/shard-")}
    if (at, when) != (1, "before"):
        session.type("data", "verify", uri, status=3)
    found = json.loads(session.type("data", "pack", "data", uri, *SMALL, "--json").stdout)
    # A shard whose last bytes were under way arrives after its sender is dead.
    assert found["sent"] <= found["shards"] - len(there)
    after = {info.name: info.generation for info in objects.list(f"{uri}/shard-")}
    assert {name: after[name] for name in there} == there
    assert shards(objects, uri) == shards(objects, PACK)
    session.type("data", "verify", uri)


def test_what_differs_is_found_and_put_right(session: Session, objects: GoogleObjects) -> None:
    good = contents(objects, PACK)
    changed = bytearray(good["shard-000001.tar"])
    changed[len(changed) // 2] ^= 1
    objects.write(f"{PACK}/shard-000001.tar", bytes(changed))
    objects.delete(f"{PACK}/shard-000002.tar")
    for words in ((), ("--quick",)):
        assert problems(session, *words).keys() == {"shard-000001.tar", "shard-000002.tar"}
    found = json.loads(session.type("data", "pack", "data", PACK, *SMALL, "--json").stdout)
    assert found["sent"] == 2
    objects.write(f"{PACK}/other.txt", b"x")
    assert problems(session, "--quick") == {"other.txt": "it is not in the manifest"}
    objects.delete(f"{PACK}/other.txt")
    assert len(session.json("data", "verify", PACK)) == len(good) - 1
    assert contents(objects, PACK) == good


@pytest.mark.parametrize(
    "fault", ["storage-unavailable", soak("storage-lost-response"), soak("storage-rate-limit")]
)
def test_passing_trouble_of_the_bucket_passes(session: Session, objects: GoogleObjects, fault: str) -> None:
    uri = f"gs://sim-bucket/{fault}"
    session.type("sim", "fault", fault, "--set", "times=2")
    session.type("data", "pack", "data", uri, *SMALL)
    assert contents(objects, uri) == contents(objects, PACK)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("pack", "nowhere", "gs://sim-bucket/new"), 2, "No such file"),
        (("pack", "file", "gs://sim-bucket/new"), 2, "no folder"),
        (("pack", "empty", "gs://sim-bucket/new"), 2, "has no files"),
        (("pack", "broken", "gs://sim-bucket/new"), 2, "gone cannot be read"),
        (("pack", "data", "gs://sim-bucket"), 2, "no prefix in a bucket"),
        (("pack", "data", "/tmp/x"), 2, "no prefix in a bucket"),
        (("pack", "data", "gs://no-such-bucket/new"), 5, "bucket gs://no-such-bucket does not exist"),
        (("pack", "data", "gs://sim-bucket/other"), 2, "has something else: note.txt"),
        (("pack", "data", PACK), 2, "shards of another size"),
        (("pack", "data/1", PACK, *SMALL), 2, "a pack of other files"),
        (("verify", "gs://sim-bucket/new"), 5, "there is no pack"),
        (("verify", "gs://no-such-bucket/new"), 5, "bucket gs://no-such-bucket does not exist"),
        (("ls", "gs://no-such-bucket"), 5, "bucket gs://no-such-bucket does not exist"),
    ],
)
def test_what_cannot_be_is_one_line_and_changes_nothing(
    session: Session, objects: GoogleObjects, words: tuple[str, ...], status: int, said: str
) -> None:
    (session.work / "empty" / "below").mkdir(parents=True, exist_ok=True)
    (session.work / "file").touch()
    (session.work / "broken").mkdir(exist_ok=True)
    if not (session.work / "broken" / "gone").is_symlink():
        (session.work / "broken" / "gone").symlink_to("nothing")
        objects.write("gs://sim-bucket/other/note.txt", b"x")
    before = objects.list("gs://sim-bucket/")
    refused = session.type("data", *words, status=status)
    assert said in " ".join(refused.stderr.split())
    assert "hint: " in refused.stderr
    assert objects.list("gs://sim-bucket/") == before


def test_a_permission_that_is_missing_is_named_with_the_role(session: Session, objects: GoogleObjects) -> None:
    why = "message=caller does not have storage.objects.create access to the Google Cloud Storage object."
    fault = ("--set", "method=storage.post", "--set", "code=7", "--set", "times=0", "--set", why)
    session.type("sim", "fault", "storage-unavailable", *fault)
    refused = session.type("data", "pack", "data", "gs://sim-bucket/denied", status=4)
    session.type("sim", "fault", "--clear")
    assert "roles/storage.objectUser" in "".join(refused.stderr.split())
    assert objects.list("gs://sim-bucket/denied/") == ()


def test_a_dry_run_says_how_many_shards_and_writes_nothing(session: Session, objects: GoogleObjects) -> None:
    said = session.type("data", "pack", "data", "gs://sim-bucket/dry", *SMALL, "--dry-run").stderr
    assert f"would pack {FILES} files" in said
    assert objects.list("gs://sim-bucket/dry/") == ()
