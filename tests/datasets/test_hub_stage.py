"""The program of `data stage`, with the real client of the hub: a small hub and a simulated bucket."""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.gcs import make_bucket, serving_gcs, upload
from tests.support.hub import Hub, serving_hub
from tests.support.jax_python import locked_python
from tests.support.session import ROOT
from tpuctl.datasets.stage import RECORD, StageRecord, parse_record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = ROOT / "templates" / "hub_stage.py"
CHUNK = 10 << 20
"""The client writes so much at a time (its DOWNLOAD_CHUNK_SIZE): a shorter beginning is asked for again."""
MODEL = random.Random(1).randbytes(2 * CHUNK + 1000)
FILES = {"config.json": b'{"a": 1}\n', "empty.txt": b"", "model.bin": MODEL, "sub/vocab.bin": MODEL[:5000]}


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    with locked_python("hf-hub", "import huggingface_hub, google.cloud.storage") as found:
        yield found


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as root, serving_gcs(Path(root)) as url:
        make_bucket(url)
        yield url


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving_hub() as made:
        made.add("models/org/name", FILES)
        yield made


class Host:
    """Where the program runs; `prefix` is one of its own in the bucket."""

    def __init__(self, python: Path, bucket: str, hub: Hub, home: Path) -> None:
        self.python, self.bucket, self.hub, self.home = python, bucket, hub, home
        self.prefix = home.name

    def start(self, token: str = "", **asked: Any) -> subprocess.Popen[str]:
        wanted = {"kind": "model", "repo": "org/name", "revision": "main", "include": [], "exclude": []}
        place = {"place": f"gs://bbb/{self.prefix}", "scratch": str(self.home / "scratch")}
        environ = {"HOME": str(self.home), "PATH": os.environ["PATH"], "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        environ |= {"HF_ENDPOINT": self.hub.url, "STORAGE_EMULATOR_HOST": self.bucket}
        return subprocess.Popen(
            [self.python, PROGRAM, json.dumps({**wanted, **place, **asked})],
            env=environ | ({"HF_TOKEN": token} if token else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def stage(self, *, status: int = 0, **asked: Any) -> str:
        """What it says, on both streams."""
        process = self.start(**asked)
        said = "".join(process.communicate(timeout=120))
        assert process.returncode == status, said
        assert not (self.home / "scratch" / ".tpuctl-stage").exists()
        return said

    def objects(self) -> dict[str, Mapping[str, Any]]:
        """By their names below the prefix."""
        at = f"{self.bucket}/storage/v1/b/bbb/o"
        found = requests.get(at, params={"prefix": f"{self.prefix}/"}, timeout=10).json().get("items", [])
        return {each["name"].partition("/")[2]: each for each in found}

    def content(self, name: str) -> bytes:
        at = f"{self.bucket}/storage/v1/b/bbb/o/{self.prefix}%2F{name.replace('/', '%2F')}?alt=media"
        answer = requests.get(at, timeout=30)
        assert answer.status_code == 200, name
        return answer.content

    def record(self) -> StageRecord:
        found = parse_record(self.content(RECORD))
        assert found is not None
        return found


@pytest.fixture
def host(python: Path, bucket: str, hub: Hub, tmp_path: Path) -> Host:
    return Host(python, bucket, hub, tmp_path)


def test_cut_off_twice_it_goes_on_where_it_was_and_a_second_time_it_brings_nothing(host: Host) -> None:
    host.hub.cuts = [CHUNK + 100, CHUNK + 100]
    mine = host.home / "scratch" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("of the user")
    said = host.stage()
    assert mine.read_text() == "of the user"
    assert host.hub.ranges == [f"bytes={CHUNK}-", f"bytes={2 * CHUNK}-"]
    assert "staged 21 of 21 MB, 4 of 4 files" in said
    assert {name: host.content(name) for name in FILES} == FILES
    record, objects = host.record(), host.objects()
    assert record.complete
    assert record.commit == host.hub.repos["models/org/name"].refs["main"]
    assert {row.name: row.crc32c for row in record.files} == {name: objects[name]["crc32c"] for name in FILES}
    assert all(row.sha256 == objects[row.name]["metadata"]["sha256"] for row in record.files)

    served = dict(host.hub.served)
    host.hub.repos["models/org/name"].refs["main"] = "f" * 40  # the branch has moved
    host.stage()
    assert host.hub.served == served
    assert {name: row["generation"] for name, row in host.objects().items()} == {
        name: row["generation"] for name, row in objects.items()
    }


@pytest.mark.long
def test_killed_in_a_file_it_leaves_none_of_it_and_brings_the_rest_of_the_first_commit(host: Host) -> None:
    host.hub.add("models/org/name", {"a.json": b"{}", "model.bin": MODEL})
    first = host.hub.repos["models/org/name"].refs["main"]
    host.hub.cuts = [CHUNK + 100] * 50  # it is within this file for long
    process = host.start(scratch=str(host.home / "scratch"))
    end = time.monotonic() + 60
    while "a.json" not in host.objects() or "model.bin" not in host.hub.served:
        assert time.monotonic() < end
        time.sleep(0.1)
    process.kill()
    process.communicate(timeout=60)
    assert sorted(host.objects()) == [RECORD, "a.json"]
    assert not host.record().complete

    host.hub.cuts.clear()
    repo = host.hub.repos["models/org/name"]
    repo.commits["f" * 40], repo.refs["main"] = {"other.json": b"{}"}, "f" * 40
    host.stage()
    assert host.hub.served["a.json"] == 1
    assert sorted(host.objects()) == [RECORD, "a.json", "model.bin"]
    assert (host.record().complete, host.record().commit) == (True, first)
    assert host.content("model.bin") == MODEL


@pytest.mark.long
def test_patterns_choose_files_and_datasets_are_repositories_too(host: Host) -> None:
    host.hub.add("datasets/org/rows", {"a.json": b"{}", "b.bin": b"1", "c/d.json": b"[]"})
    host.stage(kind="dataset", repo="org/rows", include=["*.json"], exclude=["a*"])
    assert sorted(host.objects()) == [RECORD, "c/d.json"]


def test_a_token_opens_what_is_gated_and_is_said_nowhere(host: Host) -> None:
    host.hub.add("models/org/gated", {"a.json": b"{}"}, token="open-sesame", gated=True)
    said = host.stage(repo="org/gated", status=4)
    assert "tpuctl data stage: hf://org/gated is gated" in said
    assert "--token env:HF_TOKEN]" in said
    said = host.stage(repo="org/gated", token="wrong-one", status=4)
    assert "a token of an account that may read it]" in said
    said = host.stage(repo="org/gated", token="open-sesame")
    assert host.content("a.json") == b"{}"
    assert b"open-sesame" not in host.content(RECORD) + said.encode()


REFUSED = {
    "no such revision": ({"revision": "v9"}, "hf://org/name has no revision v9", 5),
    "no such repository": ({"repo": "org/none"}, "there is no hf://org/none, or it is private", 5),
    "another kind": ({"kind": "dataset"}, "there is no hf://datasets/org/name, or it is private", 5),
    "nothing chosen": ({"include": ["*.safetensors"]}, "nothing of hf://org/name is asked for", 2),
    "no bucket": ({"place": "gs://nowhere/p"}, "there is no bucket gs://nowhere", 5),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_said_once_and_writes_nothing(host: Host, case: str) -> None:
    asked, why, status = REFUSED[case]
    said = host.stage(status=status, **asked)
    assert f"tpuctl data stage: {why}" in said
    assert "Traceback" not in said
    assert host.objects() == {}


def test_a_file_without_room_is_named_before_any_is_brought(host: Host) -> None:
    host.hub.claimed["model.bin"] = 10**15
    said = host.stage(status=1)
    assert "model.bin needs 1000000.0 GB, and" in said
    assert host.hub.served == {}


def test_what_somebody_else_wrote_stays(host: Host) -> None:
    upload(host.bucket, f"{host.prefix}/config.json", b"mine")
    assert "/config.json is something else" in host.stage(status=6)
    assert host.content("config.json") == b"mine"


@pytest.mark.long
def test_content_that_is_not_what_the_hub_lists_is_not_put_into_the_bucket(host: Host) -> None:
    host.hub.damaged.add("sub/vocab.bin")
    process = host.start()
    end = time.monotonic() + 60
    while host.hub.served.get("sub/vocab.bin", 0) < 2:
        assert time.monotonic() < end
        time.sleep(0.1)
    host.hub.damaged.clear()
    said = "".join(process.communicate(timeout=60))
    assert process.returncode == 0
    assert "sub/vocab.bin: sub/vocab.bin arrived as" in said
    assert host.content("sub/vocab.bin") == FILES["sub/vocab.bin"]
