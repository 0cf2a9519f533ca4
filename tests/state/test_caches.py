"""What a bucket's store keeps on this machine stays small, and what is used stays."""

from __future__ import annotations

import os
import sqlite3

from tpuctl.state.blobs import BlobFiles
from tpuctl.state.cache import DAY_S, ObjectCache


def test_blobs_that_were_not_used_for_longest_go_first(tmp_path):
    files = BlobFiles(tmp_path / "blobs")
    digests = [files.put(bytes([number]) * 1000) for number in range(10)]
    for age, digest in enumerate(reversed(digests)):
        path = tmp_path / "blobs" / digest[:2] / digest
        os.utime(path, (1000.0 - age, 1000.0 - age))
    files.renew(digests[0])
    files.trim(10_000)
    assert len(files.list()) == 10, "the limit is not passed yet"
    files.trim(5_000)
    left = {blob.sha256 for blob in files.list()}
    assert left == {digests[0], *digests[-3:]}, "used just now, and the youngest; four fifths of the limit"


def test_documents_that_were_not_used_for_longest_go_first(tmp_path):
    today = [1_000 * float(DAY_S)]
    path = tmp_path / "objects.sqlite"

    def open_cache() -> ObjectCache:
        return ObjectCache(path, kept_bytes=400_000, clock=lambda: today[0])

    cache = open_cache()
    for number in range(100):
        cache.keep(f"gs://b/{number}", 7, {"data": {"text": "x" * 5000}})
    cache.close()
    today[0] += DAY_S
    cache = open_cache()
    left = cache.find({f"gs://b/{number}": 7 for number in range(100)})
    assert len(left) == 50, "half of it went when it was opened too large"
    assert set(left) == {f"gs://b/{number}" for number in range(50, 100)}, "the oldest of one day"
    cache.close()
    assert path.stat().st_size < 400_000

    cache = open_cache()
    for number in range(100, 150):
        cache.keep(f"gs://b/{number}", 7, {"data": {"text": "x" * 5000}})
    today[0] += DAY_S
    used = {f"gs://b/{number}": 7 for number in range(50, 60)}
    assert len(cache.find(used)) == 10
    cache.close()
    cache = open_cache()
    assert set(cache.find(used)) == set(used), "what is used stays"
    cache.close()


def test_a_cache_of_an_older_tpuctl_is_thrown_away(tmp_path):
    path = tmp_path / "objects.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE objects (uri TEXT PRIMARY KEY, generation INTEGER, content TEXT)")
    db.execute("INSERT INTO objects VALUES ('gs://b/1', 7, '{}')")
    db.commit()
    db.close()
    cache = ObjectCache(path)
    assert cache.find({"gs://b/1": 7}) == {}
    cache.keep("gs://b/1", 7, {"data": {}})
    assert cache.find({"gs://b/1": 7}) == {"gs://b/1": {"data": "{}"}}
    cache.close()


def test_a_damaged_row_is_read_again(tmp_path):
    path = tmp_path / "objects.sqlite"
    cache = ObjectCache(path)
    cache.keep("gs://b/1", 7, {"data": {}})
    cache.keep("gs://b/2", 7, {"data": {}})
    cache.close()
    db = sqlite3.connect(path)
    db.execute("UPDATE objects SET content = '{' WHERE uri = 'gs://b/1'")
    db.commit()
    db.close()
    cache = ObjectCache(path)
    assert list(cache.find({"gs://b/1": 7, "gs://b/2": 7})) == ["gs://b/2"]
    cache.close()
