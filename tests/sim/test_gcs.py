"""The simulated Cloud Storage, driven by Google's own clients over a real socket."""

from __future__ import annotations

import os
import time

import pytest
import requests
from google.api_core import exceptions
from google.cloud import storage

from tests.support.gcs import serving_gcs, upload

CHUNK = 256 * 1024


def test_a_bucket_with_objects_is_not_deleted(bucket):
    bucket.blob("a").upload_from_string("x")
    with pytest.raises(exceptions.Conflict, match="not empty"):
        bucket.delete()


def test_labels_of_a_bucket_are_changed_under_its_metageneration(bucket):
    bucket.labels = {"team": "x"}
    bucket.patch(if_metageneration_match=1)
    assert bucket.metageneration == 2
    bucket.labels = {"team": "y"}
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.patch(if_metageneration_match=1)


def test_a_missing_bucket_is_not_found(client):
    with pytest.raises(exceptions.NotFound, match="bucket does not exist"):
        client.bucket("nobodys").blob("a").upload_from_string("x")
    with pytest.raises(exceptions.NotFound):
        list(client.list_blobs("nobodys"))


@pytest.mark.parametrize(
    "name", ["plain", "dir/sub/file.txt", "with space & +?#%2F", "grüße/雪.bin", "o/compose"]
)
def test_content_and_metadata_come_back_under_any_name(bucket, name):
    blob = bucket.blob(name)
    blob.metadata = {"step": "12"}
    blob.upload_from_string(b"\x00\r\n--x\xff" * 100, content_type="text/x-odd")
    found = bucket.get_blob(name)
    assert found.name == name
    assert found.metadata == {"step": "12"}
    assert (found.content_type, found.size, found.metageneration) == ("text/x-odd", 700, 1)
    assert found.download_as_bytes(checksum="crc32c") == b"\x00\r\n--x\xff" * 100
    assert [each.name for each in bucket.list_blobs()] == [name]


def test_generations_grow_and_time_is_kept(bucket):
    generations = []
    for index in range(5):
        blob = bucket.blob("a")
        blob.upload_from_string(str(index))
        generations.append(blob.generation)
    assert generations == sorted(set(generations))
    assert abs(generations[-1] / 1e6 - time.time()) < 60
    assert abs(blob.time_created.timestamp() - time.time()) < 60


def test_generations_grow_even_if_the_clock_stands_still_and_the_server_restarts(tmp_path):
    seen = []
    for _ in range(2):
        with serving_gcs(tmp_path, lambda: 1000.0) as url:
            requests.post(f"{url}/storage/v1/b?project=p", json={"name": "bbb"}, timeout=5)
            for _ in range(3):
                seen.append(int(upload(url, "a").json()["generation"]))
                requests.delete(f"{url}/storage/v1/b/bbb/o/a", timeout=5)
    assert seen == list(range(1_000_000_000, 1_000_000_006))


def test_preconditions_hold_for_uploads(bucket):
    blob = bucket.blob("lock")
    blob.upload_from_string("1", if_generation_match=0)
    first = blob.generation
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("lock").upload_from_string("2", if_generation_match=0)
    blob.upload_from_string("2", if_generation_match=first)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_string("3", if_generation_match=first)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_string("3", if_generation_not_match=blob.generation)
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("new").upload_from_string("3", if_metageneration_match=1)
    assert blob.download_as_bytes() == b"2"


def test_preconditions_hold_for_reads(bucket):
    blob = bucket.blob("a")
    blob.upload_from_string("1")
    assert blob.download_as_bytes(if_generation_match=blob.generation) == b"1"
    for stale in ({"if_generation_match": 7}, {"if_metageneration_match": 9}):
        with pytest.raises(exceptions.PreconditionFailed):
            blob.download_as_bytes(**stale)
        with pytest.raises(exceptions.PreconditionFailed):
            blob.reload(**stale)
    with pytest.raises(exceptions.NotModified):
        bucket.blob("a").reload(if_generation_not_match=blob.generation)
    with pytest.raises(exceptions.NotFound):
        bucket.blob("a", generation=5).download_as_bytes()


def test_preconditions_hold_for_changes_of_metadata(bucket):
    blob = bucket.blob("a")
    blob.upload_from_string("1")
    generation = blob.generation
    blob.metadata = {"k": "v"}
    blob.patch(if_metageneration_match=1)
    assert (blob.metageneration, blob.generation) == (2, generation)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.patch(if_metageneration_match=1)
    assert bucket.get_blob("a").metadata == {"k": "v"}


def test_a_delete_with_a_stale_generation_deletes_nothing(bucket):
    blob = bucket.blob("a")
    blob.upload_from_string("1")
    stale = blob.generation
    blob.upload_from_string("2")
    with pytest.raises(exceptions.PreconditionFailed):
        bucket.blob("a").delete(if_generation_match=stale)
    assert bucket.blob("a").download_as_bytes() == b"2"
    bucket.blob("a").delete(if_generation_match=blob.generation)
    assert not bucket.blob("a").exists()
    with pytest.raises(exceptions.NotFound):
        bucket.blob("a").delete()


def test_a_suffix_range_gives_the_last_bytes(bucket, endpoint):
    bucket.blob("a").upload_from_string("0123456789")
    url = f"{endpoint}/storage/v1/b/team-bucket/o/a?alt=media"
    answer = requests.get(url, headers={"Range": "bytes=-3"}, timeout=5)
    assert (answer.status_code, answer.content) == (206, b"789")
    assert answer.headers["content-range"] == "bytes 7-9/10"
    assert answer.headers["x-goog-hash"].startswith("crc32c=")
    assert int(answer.headers["x-goog-generation"]) > 0


def fill(bucket: storage.Bucket, *names: str) -> None:
    for name in names:
        bucket.blob(name).upload_from_string("x")


def test_a_listing_with_delimiter_shows_one_level(client, bucket):
    fill(bucket, "a/1", "a/2", "a/b/3", "c", "d/", "é/x")
    listing = client.list_blobs(bucket, delimiter="/")
    assert [each.name for each in listing] == ["c"]
    assert listing.prefixes == {"a/", "d/", "é/"}
    below = client.list_blobs(bucket, prefix="a/", delimiter="/")
    assert [each.name for each in below] == ["a/1", "a/2"]
    assert below.prefixes == {"a/b/"}
    folder = client.list_blobs(bucket, prefix="d/", delimiter="/")
    assert [each.name for each in folder] == ["d/"]


@pytest.mark.parametrize("page_size", [1, 2, 3, 100])
def test_pages_of_a_listing_add_up(client, bucket, page_size):
    fill(bucket, "a", "b/1", "b/2", "b/3", "c", "d/1", "e")
    listing = client.list_blobs(bucket, delimiter="/", page_size=page_size)
    names = [[each.name for each in page] for page in listing.pages]
    assert [name for page in names for name in page] == ["a", "c", "e"]
    assert listing.prefixes == {"b/", "d/"}
    assert all(len(page) <= page_size for page in names)


def test_a_listing_is_bounded_by_offsets_and_results(client, bucket):
    fill(bucket, "a1", "a2", "a3", "b1")
    assert [b.name for b in client.list_blobs(bucket, start_offset="a2", end_offset="b1")] == ["a2", "a3"]
    assert [b.name for b in client.list_blobs(bucket, prefix="a", max_results=2)] == ["a1", "a2"]


def test_a_resumable_upload_of_unknown_size_arrives_whole(bucket):
    with bucket.blob("s").open("wb", chunk_size=256 * 1024) as stream:
        stream.write(b"y" * 300_000)
    assert bucket.blob("s").download_as_bytes() == b"y" * 300_000


def test_a_resumable_upload_keeps_its_precondition(bucket):
    bucket.blob("a").upload_from_string("old")
    blob = bucket.blob("a", chunk_size=256 * 1024)
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_string(b"z" * 600_000, if_generation_match=0)
    assert blob.download_as_bytes() == b"old"


def test_a_resumable_upload_loses_to_whoever_finished_before(bucket):
    blob = bucket.blob("a")
    url = blob.create_resumable_upload_session(if_generation_match=0)
    blob.upload_from_string("first")
    assert requests.put(url, data=b"second", timeout=5).status_code == 412
    assert blob.download_as_bytes() == b"first"


def test_an_interrupted_resumable_upload_goes_on_where_it_stopped(bucket):
    url = bucket.blob("a").create_resumable_upload_session()
    content = os.urandom(CHUNK) + b"456789"

    def send(span: str, data: bytes = b"", verb: str = "PUT") -> requests.Response:
        headers = {"Content-Range": f"bytes {span}/{len(content)}"}
        return requests.request(verb, url, data=data, headers=headers, timeout=5)

    sent = send(f"0-{CHUNK - 1}", content[:CHUNK])
    assert (sent.status_code, sent.headers["range"]) == (308, f"bytes=0-{CHUNK - 1}")
    asked = send("*")
    assert (asked.status_code, asked.headers["range"]) == (308, f"bytes=0-{CHUNK - 1}")
    in_go = {"Content-Range": f"bytes */{len(content)}", "X-GUploader-No-308": "yes"}
    asked = requests.put(url, headers=in_go, timeout=5)
    assert (asked.status_code, asked.headers["x-http-status-code-override"]) == (200, "308")
    assert asked.headers["range"] == f"bytes=0-{CHUNK - 1}"
    assert send(f"{CHUNK + 2}-{CHUNK + 5}", b"6789").status_code == 400
    done = send(f"{CHUNK - 2}-{CHUNK + 5}", content[-8:])
    assert done.status_code == 200
    assert bucket.blob("a").download_as_bytes() == content


def test_wrong_digests_are_refused(bucket):
    blob = bucket.blob("a")
    blob.md5_hash = "AAAAAAAAAAAAAAAAAAAAAA=="
    with pytest.raises(exceptions.BadRequest, match="MD5 hash"):
        blob.upload_from_string("x")
    assert not bucket.blob("a").exists()


def test_no_content_is_left_behind_by_overwrites_deletes_and_refusals(bucket, tmp_path):
    bucket.soft_delete_policy.retention_duration_seconds = 0
    bucket.patch()
    blob = bucket.blob("a")
    for _ in range(3):
        blob.upload_from_string("x")
    with pytest.raises(exceptions.PreconditionFailed):
        blob.upload_from_string("x", if_generation_match=1)
    assert len(list((tmp_path / "gcs/content").iterdir())) == 1
    blob.delete()
    assert list((tmp_path / "gcs/content").iterdir()) == []
