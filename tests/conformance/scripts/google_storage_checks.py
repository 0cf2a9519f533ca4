"""google-cloud-storage with its transfer manager."""

import os
from datetime import UTC, datetime

import requests
from checks import BUCKET, WORK, check, main, raises
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage import transfer_manager

if "STORAGE_EMULATOR_HOST" in os.environ:
    client = storage.Client(project="sim-project", credentials=AnonymousCredentials())
else:
    client = storage.Client()
bucket = client.bucket(BUCKET)


def versioned(name, **settings):
    made = client.bucket(name)
    made.versioning_enabled = True
    for key, value in settings.items():
        setattr(made, key, value)
    made.create(project="sim-project", location="us-central2")
    return made


@check
def upload_and_download():
    """upload, download, ranges, checksums"""
    blob = bucket.blob("lib/a b+&.txt")
    blob.upload_from_string("hello", content_type="text/plain", checksum="crc32c")
    assert blob.download_as_text() == "hello"
    assert blob.download_as_bytes(start=1, end=2) == b"el"
    assert (blob.size, blob.content_type) == (5, "text/plain")


@check
def resumable():
    """a resumable upload of 9 MB in chunks"""
    blob = bucket.blob("lib/big", chunk_size=2**20)
    content = os.urandom(9_000_001)
    blob.upload_from_string(content)
    assert bucket.blob("lib/big").download_as_bytes(checksum="md5") == content


@check
def lost_answer():
    """a session that has ended says so again"""
    url = bucket.blob("lib/lost").create_resumable_upload_session()
    assert requests.put(url, data=b"x", timeout=10).status_code == 200
    again = requests.put(url, headers={"Content-Range": "bytes */*"}, timeout=10)
    assert (again.status_code, again.json()["name"]) == (200, "lib/lost")


@check
def small_chunk():
    """a chunk that is too small is refused"""
    url = bucket.blob("lib/small").create_resumable_upload_session()
    answer = requests.put(url, data=b"x" * 1000, headers={"Content-Range": "bytes 0-999/5000"}, timeout=10)
    assert answer.status_code == 400
    assert "equal or greater than 262144" in answer.text


@check
def cancelled():
    """a session that is cancelled"""
    url = bucket.blob("lib/cancelled").create_resumable_upload_session()
    assert requests.delete(url, timeout=10).status_code == 499
    assert requests.put(url, data=b"x", timeout=10).status_code >= 400
    assert not bucket.blob("lib/cancelled").exists()


@check
def concurrent_chunks():
    """transfer_manager: upload and download of 40 MB in parts, many files"""
    path, back = os.path.join(WORK, "parts"), os.path.join(WORK, "parts-back")
    with open(path, "wb") as stream:
        stream.write(os.urandom(40_000_000))
    blob = bucket.blob("lib/parts")
    blob.metadata = {"step": "1"}
    transfer_manager.upload_chunks_concurrently(
        path, blob, chunk_size=8 * 2**20, max_workers=4, worker_type="thread"
    )
    found = bucket.get_blob("lib/parts")
    assert (found.size, found.md5_hash, found.metadata) == (40_000_000, None, {"step": "1"})
    transfer_manager.download_chunks_concurrently(
        bucket.blob("lib/parts"), back, chunk_size=8 * 2**20, max_workers=4, worker_type="thread"
    )
    with open(path, "rb") as one, open(back, "rb") as two:
        assert one.read() == two.read()


@check
def many_files():
    """transfer_manager: many files up and down"""
    source, target = os.path.join(WORK, "many"), os.path.join(WORK, "many-back")
    os.makedirs(source)
    names = [f"{number}.txt" for number in range(30)]
    for name in names:
        with open(os.path.join(source, name), "w") as stream:
            stream.write(name)
    done = transfer_manager.upload_many_from_filenames(
        bucket, names, source_directory=source, blob_name_prefix="lib/many/", worker_type="thread"
    )
    assert done == [None] * 30, done
    found = transfer_manager.download_many_to_path(
        bucket, [f"lib/many/{name}" for name in names], destination_directory=target, worker_type="thread"
    )
    assert all(each is None for each in found), found


@check
def composing():
    """compose: no md5Hash, componentCount, 32 sources at most"""
    parts = [bucket.blob(f"lib/part{number}") for number in range(33)]
    for number, part in enumerate(parts):
        part.upload_from_string(str(number))
    whole = bucket.blob("lib/whole")
    whole.content_type = "text/plain"
    whole.compose(parts[:32])
    whole.reload()
    assert (whole.component_count, whole.md5_hash) == (32, None)
    assert whole.download_as_bytes(checksum="crc32c") == "".join(map(str, range(32))).encode()
    raises("exceeds the maximum", bucket.blob("lib/no").compose, parts)
    whole.compose([whole, parts[32]])
    whole.reload()
    assert whole.component_count == 33


@check
def headers_of_media():
    """Cache-Control, Content-Disposition and Content-Language survive a download"""
    blob = bucket.blob("lib/headers")
    blob.cache_control, blob.content_disposition, blob.content_language = "no-cache", "inline", "de"
    blob.upload_from_string("x")
    found = bucket.get_blob("lib/headers")
    found.download_as_bytes()
    assert (found.cache_control, found.content_language) == ("no-cache", "de")
    answer = client._http.get(found.media_link, timeout=10)
    assert answer.headers["content-disposition"] == "inline"


@check
def moving():
    """objects.move keeps the content and the metadata"""
    blob = bucket.blob("lib/from")
    blob.metadata = {"k": "v"}
    blob.upload_from_string("x")
    moved = bucket.move_blob(blob, "lib/to", if_source_generation_match=blob.generation)
    assert (moved.download_as_bytes(), moved.metadata) == (b"x", {"k": "v"})
    assert not bucket.blob("lib/from").exists()


@check
def soft_delete():
    """7 days of soft delete by default: list, restore"""
    made = client.create_bucket("lib-soft", location="us-central2")
    assert made.soft_delete_policy.retention_duration_seconds == 604800
    blob = made.blob("a")
    blob.upload_from_string("1")
    generation = blob.generation
    blob.delete()
    assert list(made.list_blobs()) == []
    (gone,) = made.list_blobs(soft_deleted=True)
    assert (gone.generation, gone.soft_delete_time is not None) == (generation, True)
    assert (gone.hard_delete_time - gone.soft_delete_time).days == 7
    back = made.restore_blob("a", generation=generation)
    assert back.generation != generation
    assert made.blob("a").download_as_bytes() == b"1"


@check
def versions():
    """versioning: both generations, by generation, deletion of one"""
    made = versioned("lib-versions")
    blob = made.blob("a")
    blob.upload_from_string("1")
    first = blob.generation
    blob.upload_from_string("2")
    assert [each.generation for each in made.list_blobs(versions=True)] == [first, blob.generation]
    assert made.blob("a", generation=first).download_as_bytes() == b"1"
    made.blob("a").delete()
    assert not made.blob("a").exists()
    assert len(list(made.list_blobs(versions=True))) == 2
    made.blob("a", generation=first).delete()
    assert len(list(made.list_blobs(versions=True))) == 1
    raises(exceptions.Conflict, made.delete)


@check
def holds():
    """temporary and event-based holds keep an object"""
    blob = bucket.blob("lib/held")
    blob.upload_from_string("x")
    for hold in ("temporary_hold", "event_based_hold"):
        setattr(blob, hold, True)
        blob.patch()
        raises(exceptions.Forbidden, blob.delete)
        raises(exceptions.Forbidden, bucket.blob("lib/held").upload_from_string, "y")
        setattr(blob, hold, False)
        blob.patch()
    blob.delete()


@check
def retention():
    """a retention policy keeps an object"""
    made = client.bucket("lib-retention")
    made.retention_period = 3600
    made.create(project="sim-project")
    made.blob("a").upload_from_string("x")
    raises(exceptions.Forbidden, made.blob("a").delete)


@check
def globs():
    """matchGlob"""
    for name in ("g/p1", "g/p2", "g/q1", "g/d/p3"):
        bucket.blob(f"lib/{name}").upload_from_string("")
    found = {
        glob: [b.name for b in client.list_blobs(bucket, match_glob=glob)]
        for glob in ("lib/g/p?", "lib/g/**p*", "lib/g/{p1,q*}", "lib/g/[pq]1")
    }
    assert found["lib/g/p?"] == ["lib/g/p1", "lib/g/p2"]
    assert found["lib/g/**p*"] == ["lib/g/d/p3", "lib/g/p1", "lib/g/p2"]
    assert found["lib/g/{p1,q*}"] == ["lib/g/p1", "lib/g/q1"]
    assert found["lib/g/[pq]1"] == ["lib/g/p1", "lib/g/q1"]


@check
def batches():
    """a batch of deletions and changes"""
    blobs = [bucket.blob(f"lib/batch{number}") for number in range(3)]
    for blob in blobs:
        blob.upload_from_string("x")
    with client.batch():
        blobs[0].delete()
        blobs[1].metadata = {"k": "v"}
        blobs[1].patch()
    assert [blob.exists() for blob in blobs] == [False, True, True]
    assert bucket.get_blob("lib/batch1").metadata == {"k": "v"}


@check
def rewriting():
    """copy, rewrite, storage classes, custom time"""
    blob = bucket.blob("lib/class")
    blob.upload_from_string("x")
    blob.update_storage_class("NEARLINE")
    assert bucket.get_blob("lib/class").storage_class == "NEARLINE"
    blob.custom_time = datetime(2026, 1, 2, tzinfo=UTC)
    blob.patch()
    assert bucket.get_blob("lib/class").custom_time.year == 2026
    copied = bucket.copy_blob(blob, bucket, "lib/class2")
    assert copied.download_as_bytes() == b"x"


@check
def refusals():
    """what is not simulated is refused, and nothing that clients take for an answer or repeat"""
    calls = {
        "notifications": lambda: list(bucket.list_notifications()),
        "acl": lambda: bucket.acl.reload(),
        "hmac": lambda: list(client.list_hmac_keys()),
        "folders": lambda: client._connection.api_request(
            "POST", f"/b/{BUCKET}/folders", data={"name": "d/"}, query_params={}
        ),
    }
    for name, call in calls.items():
        error = raises(exceptions.GoogleAPICallError, call)
        assert error.code in (400, 409), (name, error)


@check
def policies():
    """the bucket's IAM policy, labels, permissions"""
    policy = bucket.get_iam_policy()
    assert any("legacyBucketOwner" in binding["role"] for binding in policy.bindings)
    assert bucket.test_iam_permissions(["storage.objects.get"]) == ["storage.objects.get"]
    bucket.labels = {"team": "x"}
    bucket.patch()
    assert client.get_bucket(BUCKET).labels == {"team": "x"}


@check
def service_account():
    """the project's service account"""
    assert client.get_service_account_email().endswith("@gs-project-accounts.iam.gserviceaccount.com")


main()
