"""What the simulated Cloud Storage keeps (versions, soft-deleted objects, holds), puts together and moves."""

from __future__ import annotations

import datetime
import os
from typing import Any

import pytest
import requests
from google.api_core import exceptions
from google.cloud import storage

WEEK_S = 7 * 86_400


@pytest.fixture
def versioned(client: storage.Client) -> storage.Bucket:
    bucket = client.bucket("versioned")
    bucket.versioning_enabled = True
    return client.create_bucket(bucket)


def put(bucket: storage.Bucket, name: str, content: str) -> storage.Blob:
    blob = bucket.blob(name)
    blob.upload_from_string(content)
    return blob


def generations(bucket: storage.Bucket, **which: Any) -> list[int]:
    return [blob.generation for blob in bucket.list_blobs(**which)]


@pytest.mark.parametrize("page_size", [1, 2, 5])
def test_pages_of_versions_add_up(versioned, page_size):
    made = [put(versioned, name, "x").generation for name in ("a", "a", "a", "b", "b/c")]
    listing = versioned.list_blobs(versions=True, page_size=page_size)
    assert [blob.generation for page in listing.pages for blob in page] == made


def test_a_deleted_object_is_kept_for_a_week_and_can_be_restored(bucket, clock):
    gone = put(bucket, "a", "1")
    gone.delete()
    assert generations(bucket) == []
    assert generations(bucket, soft_deleted=True) == [gone.generation]
    with pytest.raises(exceptions.NotFound):
        bucket.blob("a", generation=gone.generation).download_as_bytes()
    back = bucket.restore_blob("a", generation=gone.generation)
    assert back.generation > gone.generation
    assert bucket.blob("a").download_as_bytes() == b"1"
    clock.ahead = WEEK_S + 1
    assert generations(bucket, soft_deleted=True) == []
    with pytest.raises(exceptions.NotFound):
        bucket.restore_blob("a", generation=gone.generation)


def test_an_overwritten_object_is_kept_too_until_its_time_is_over(bucket, clock, tmp_path):
    old = put(bucket, "a", "1")
    put(bucket, "a", "2")
    assert generations(bucket, soft_deleted=True) == [old.generation]
    clock.ahead = WEEK_S + 1
    put(bucket, "b", "3")
    assert len(list((tmp_path / "gcs/content").iterdir())) == 2


def test_without_the_policy_nothing_is_kept(bucket):
    bucket.soft_delete_policy.retention_duration_seconds = 0
    bucket.patch()
    put(bucket, "a", "1").delete()
    assert generations(bucket, soft_deleted=True) == []


def test_a_policy_of_a_day_is_refused(bucket):
    bucket.soft_delete_policy.retention_duration_seconds = 86_400
    with pytest.raises(exceptions.BadRequest, match="softDeletePolicy"):
        bucket.patch()


def test_versions_and_soft_deleted_objects_are_not_listed_together(bucket, endpoint):
    url = f"{endpoint}/storage/v1/b/team-bucket/o?versions=true&softDeleted=true"
    assert requests.get(url, timeout=5).status_code == 400


@pytest.mark.parametrize("hold", ["temporary_hold", "event_based_hold"])
@pytest.mark.parametrize("kind", ["bucket", "versioned"])
def test_a_hold_keeps_an_object_also_where_versions_are_kept(request, kind, hold):
    place = request.getfixturevalue(kind)
    blob = put(place, "a", "1")
    setattr(blob, hold, True)
    blob.patch()
    for act in (blob.delete, lambda: put(place, "a", "2"), lambda: place.move_blob(blob, "b")):
        with pytest.raises(exceptions.Forbidden, match="hold and cannot be deleted, overwritten or archived"):
            act()
    assert place.blob("a").download_as_bytes() == b"1"
    assert not place.blob("b").exists()
    setattr(blob, hold, False)
    blob.patch()
    blob.delete()


def test_a_refused_move_leaves_no_content_behind(bucket, tmp_path):
    blob = put(bucket, "a", "1")
    blob.temporary_hold = True
    blob.patch()
    with pytest.raises(exceptions.Forbidden):
        bucket.move_blob(blob, "b")
    assert len(list((tmp_path / "gcs/content").iterdir())) == 1


def test_generation_0_is_the_live_object(bucket, endpoint):
    put(bucket, "a", "1")
    url = f"{endpoint}/storage/v1/b/team-bucket/o/a?generation=0"
    assert requests.get(url, timeout=5).status_code == 200
    assert requests.delete(url, timeout=5).status_code == 204
    assert not bucket.blob("a").exists()


def test_a_compose_asks_nothing_of_the_digests_of_its_destination(bucket, endpoint):
    part = put(bucket, "part", "1")
    body = {
        "sourceObjects": [{"name": "part"}, {"name": "part"}],
        "destination": {"contentType": "text/plain", "md5Hash": part.md5_hash, "crc32c": part.crc32c},
    }
    url = f"{endpoint}/storage/v1/b/team-bucket/o/whole/compose"
    assert requests.post(url, json=body, timeout=5).json()["componentCount"] == 2
    assert bucket.blob("whole").download_as_bytes(checksum="crc32c") == b"11"
    assert requests.post(url, json={"sourceObjects": []}, timeout=5).status_code == 400


def test_odd_metadata_never_breaks_the_headers(bucket, endpoint):
    blob = bucket.blob("a")
    blob.content_disposition, blob.metadata = "x\r\nset-cookie: y=1", {"kü": "v", "ok": "grüße\nX: y"}
    blob.upload_from_string("x")
    answer = requests.get(f"{endpoint}/team-bucket/a", timeout=5)
    assert (answer.status_code, answer.content) == (200, b"x")
    assert "set-cookie" not in answer.headers
    assert answer.headers["x-goog-meta-ok"].encode("latin-1").decode() == "grüße X: y"


def test_content_is_shared_by_copies_and_survives_their_deletion(bucket, tmp_path):
    bucket.soft_delete_policy.retention_duration_seconds = 0
    bucket.patch()
    content = os.urandom(3 * 1024**2)
    blob = bucket.blob("a")
    blob.upload_from_string(content)
    bucket.copy_blob(blob, bucket, "b")
    blob.delete()
    assert bucket.blob("b").download_as_bytes() == content
    assert len(list((tmp_path / "gcs/content").iterdir())) == 1


DAY_S = 86_400
LOCKED = "has a locked Retention Policy which cannot be removed"


def test_a_retention_policy_keeps_objects_until_their_time_is_over(bucket, endpoint, clock):
    bucket.retention_period = 3600
    bucket.patch()
    blob = put(bucket, "a", "1")
    for act in (blob.delete, lambda: put(bucket, "a", "2"), lambda: bucket.move_blob(blob, "b")):
        with pytest.raises(exceptions.Forbidden, match=r"retention policy .* cannot be deleted or overwritten"):
            act()
    refused = requests.delete(f"{endpoint}/storage/v1/b/team-bucket/o/a", timeout=5).json()["error"]
    assert refused["errors"][0]["reason"] == "retentionPolicyNotMet"
    kept = datetime.timedelta(hours=1)
    [listed] = bucket.list_blobs()
    for shown in (blob, bucket.get_blob("a"), listed):
        assert shown.retention_expiration_time == shown.time_created + kept
    clock.ahead = 3601
    blob.delete()
    assert generations(bucket) == []


def test_a_locked_retention_policy_only_grows(bucket, endpoint):
    url = f"{endpoint}/storage/v1/b/team-bucket"
    refused = requests.patch(
        url, json={"retentionPolicy": {"retentionPeriod": "60", "isLocked": True}}, timeout=5
    )
    assert (refused.status_code, "does not implement" in refused.text) == (400, True)
    bucket.reload()
    none_yet = requests.post(f"{url}/lockRetentionPolicy?ifMetagenerationMatch=1", timeout=5)
    assert (none_yet.status_code, "no retention policy" in none_yet.text) == (400, True)
    bucket.retention_period = 3600
    bucket.patch()
    for query, status in (("?ifMetagenerationMatch=77", 412), ("", 400)):
        assert requests.post(f"{url}/lockRetentionPolicy{query}", timeout=5).status_code == status
    bucket.lock_retention_policy()
    assert bucket.retention_policy_locked
    bucket.retention_period = 60
    with pytest.raises(exceptions.Forbidden, match="Cannot reduce retention duration of a locked"):
        bucket.patch()
    assert LOCKED in requests.patch(url, json={"retentionPolicy": None}, timeout=5).text
    unlocked = requests.patch(url, json={"retentionPolicy": {"isLocked": False}}, timeout=5)
    assert unlocked.status_code == 403
    bucket.retention_period = 7200
    bucket.patch()
    bucket.reload()
    assert (bucket.retention_policy_locked, bucket.retention_period) == (True, 7200)


def test_a_lifecycle_rule_deletes_by_age(bucket, clock):
    bucket.add_lifecycle_delete_rule(age=30, matches_prefix=["old/"])
    bucket.patch()
    put(bucket, "old/a", "1")
    put(bucket, "new/a", "1")
    held = put(bucket, "old/held", "1")
    held.temporary_hold = True
    held.patch()
    clock.ahead = 29 * DAY_S
    assert [blob.name for blob in bucket.list_blobs()] == ["new/a", "old/a", "old/held"]
    clock.ahead = 30 * DAY_S + 1
    assert [blob.name for blob in bucket.list_blobs()] == ["new/a", "old/held"]
    assert [blob.name for blob in bucket.list_blobs(soft_deleted=True)] == ["old/a"]
    held.temporary_hold = False
    held.patch()
    clock.ahead += DAY_S
    assert [blob.name for blob in bucket.list_blobs()] == ["new/a"]


def test_lifecycle_rules_tell_versions_apart(versioned, clock):
    versioned.add_lifecycle_delete_rule(number_of_newer_versions=2)
    versioned.add_lifecycle_delete_rule(is_live=False, days_since_noncurrent_time=10)
    versioned.patch()
    made = [put(versioned, "a", str(number)).generation for number in range(4)]
    put(versioned, "b", "x")
    clock.ahead = 61
    assert generations(versioned, versions=True, prefix="a") == made[2:]
    clock.ahead = 10 * DAY_S + 1
    assert generations(versioned, versions=True, prefix="a") == made[3:]
    assert generations(versioned, prefix="b") != []


def test_a_lifecycle_rule_keeps_as_noncurrent_where_versions_are_kept(versioned, clock):
    versioned.add_lifecycle_delete_rule(age=1, is_live=True)
    versioned.patch()
    blob = put(versioned, "a", "1")
    clock.ahead = DAY_S + 1
    assert generations(versioned) == []
    assert generations(versioned, versions=True) == [blob.generation]


def test_a_lifecycle_rule_changes_the_storage_class_and_deletion_wins(bucket, clock):
    bucket.add_lifecycle_set_storage_class_rule("NEARLINE", age=1)
    bucket.add_lifecycle_delete_rule(age=1, matches_suffix=[".tmp"])
    bucket.patch()
    put(bucket, "a", "1")
    put(bucket, "b.tmp", "1")
    clock.ahead = DAY_S + 1
    [left] = bucket.list_blobs()
    assert (left.name, left.storage_class) == ("a", "NEARLINE")


def test_a_lifecycle_rule_ends_uploads_that_nobody_completes(bucket, endpoint, clock):
    bucket.add_lifecycle_abort_incomplete_multipart_upload_rule(age=1)
    bucket.patch()
    assert requests.post(f"{endpoint}/team-bucket/a?uploads", timeout=5).status_code == 200
    listed = f"{endpoint}/team-bucket?uploads"
    assert "<UploadId>" in requests.get(listed, timeout=5).text
    clock.ahead = DAY_S + 1
    assert "<UploadId>" not in requests.get(listed, timeout=5).text


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ({"action": {"type": "Delete"}, "condition": {}}, "at least one condition"),
        ({"action": {"type": "Burn"}, "condition": {"age": 1}}, "Invalid lifecycle action type: Burn"),
        ({"action": {"type": "SetStorageClass"}, "condition": {"age": 1}}, "Invalid storage class"),
        ({"action": {"type": "Delete"}, "condition": {"age": -1}}, "must not be negative"),
        ({"action": {"type": "Delete"}, "condition": {"createdBefore": "soon"}}, "Invalid date"),
        ({"action": {"type": "Delete"}, "condition": {"matchesPattern": "x"}}, "does not implement"),
        (
            {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"isLive": True}},
            "not supported for the action",
        ),
    ],
)
def test_lifecycle_rules_that_cannot_be_done_are_refused(bucket, endpoint, rule, says):
    url = f"{endpoint}/storage/v1/b/team-bucket"
    before = requests.get(url, timeout=5).json()
    refused = requests.patch(url, json={"lifecycle": {"rule": [rule]}}, timeout=5)
    assert (refused.status_code, says in refused.text) == (400, True), refused.text
    assert requests.get(url, timeout=5).json() == before
