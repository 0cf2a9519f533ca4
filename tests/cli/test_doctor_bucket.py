"""`tpuctl doctor` over a store in a bucket: every breakage is made in the bucket or its permissions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.session import SIM_FIRST, Session, open_session

pytestmark = pytest.mark.slow
PREFIX = "fleet"
URI = f"gs://sim-bucket/{PREFIX}"
IDENTITY = f"/storage/v1/b/sim-bucket/o/{PREFIX}%2Fidentity?alt=media"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as session:
        session.add_quick_gcloud()
        session.environ["NO_GCE_CHECK"] = "true"
        session.type("config", "init", "--store", URI)
        session.type("watch", "once")
        set_up_bucket(session, {"softDeletePolicy": {"retentionDurationSeconds": 0}})
        yield session


@pytest.fixture(autouse=True)
def mended(session: Session) -> Iterator[None]:
    environ, identity = dict(session.environ), session.ask("GET", IDENTITY)
    yield
    session.environ = environ
    session.type("sim", "fault", "--clear")
    set_up_bucket(session, dict.fromkeys(("versioning", "retentionPolicy", "softDeletePolicy")))
    set_up_bucket(session, {"lifecycle": None, "defaultEventBasedHold": None, "storageClass": "STANDARD"})
    write_identity(session, identity)


def set_up_bucket(session: Session, settings: dict[str, Any]) -> None:
    session.ask("PATCH", "/storage/v1/b/sim-bucket", settings)


def write_identity(session: Session, identity: object) -> None:
    path = f"/upload/storage/v1/b/sim-bucket/o?uploadType=media&name={PREFIX}%2Fidentity"
    session.ask("POST", path, identity)


def about_store(session: Session, *, status: int) -> list[tuple[str, str, str | None]]:
    """(level, what, fix) of the findings about the store that are not ok."""
    report = json.loads(session.type("doctor", "--json", status=status).stdout)
    return [
        (each["level"], each["what"], each["fix"])
        for each in report["findings"]
        if each["check"] == "store" and each["level"] != "ok"
    ]


def the_finding(session: Session, *, status: int) -> tuple[str, str, str]:
    (found,) = about_store(session, status=status)
    assert found[2] is not None
    return found[0], found[1], found[2]


def test_a_sound_store_is_ok_and_its_last_pass_is_told(session: Session) -> None:
    report = json.loads(session.type("doctor", "--json").stdout)
    words = {each["check"]: each["what"] for each in report["findings"]}
    assert words["store"] == f"{URI}, schema 1"
    assert {each["level"] for each in report["findings"] if each["check"] in ("store", "watchdog")} == {"ok"}
    assert "pass" in words["watchdog"]


@pytest.mark.parametrize(
    ("denied", "role"),
    [
        ("storage.objects.create", "roles/storage.objectUser"),
        ("storage.objects.delete", "roles/storage.objectUser"),
        ("storage.objects.list", "roles/storage.objectUser"),
        ("storage.buckets.get", "roles/storage.legacyBucketReader"),
    ],
)
def test_a_permission_that_is_missing(session: Session, denied: str, role: str) -> None:
    session.type("sim", "fault", "no-permission", "--set", f"name={denied}")
    level, what, fix = the_finding(session, status=1)
    assert level == "problem"
    assert what == f"not granted on gs://sim-bucket: {denied}"
    assert fix.startswith(f"{SIM_FIRST}gcloud storage buckets add-iam-policy-binding gs://sim-bucket --member=")
    assert fix.endswith(f"--role={role}")


def test_nothing_may_be_read(session: Session) -> None:
    session.type("sim", "fault", "no-permission", "--set", "name=storage.*")
    found = about_store(session, status=1)
    assert ("problem", "roles/storage.objectUser") in [(level, (fix or "")[-24:]) for level, _, fix in found]
    assert any("read gs://sim-bucket/fleet/identity" in what for _, what, _ in found)


@pytest.mark.parametrize(
    ("settings", "level", "says", "mends"),
    [
        (
            {"retentionPolicy": {"retentionPeriod": "3600"}},
            "problem",
            "keeps every object for 1h",
            "--clear-ret",
        ),
        ({"defaultEventBasedHold": True}, "problem", "a hold on every new object", "--no-default-event"),
        ({"versioning": {"enabled": True}}, "warning", "keeps old versions", "--no-versioning"),
        (
            {"softDeletePolicy": {"retentionDurationSeconds": "604800"}},
            "warning",
            "keeps what is written over for 7d",
            "--clear-soft-delete",
        ),
        (
            {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 30}}]}},
            "problem",
            "deletes records after 30 days",
            "--clear-lifecycle",
        ),
        ({"storageClass": "COLDLINE"}, "warning", "of class COLDLINE", "--default-storage-class=STANDARD"),
    ],
)
def test_a_bucket_that_keeps_or_loses_what_it_should_not(
    session: Session, settings: dict[str, Any], level: str, says: str, mends: str
) -> None:
    set_up_bucket(session, settings)
    found = the_finding(session, status=1 if level == "problem" else 0)
    assert found[0] == level
    assert says in found[1]
    assert mends in found[2]


def test_a_locked_retention_policy_leaves_another_bucket_only(session: Session) -> None:
    bucket = {"name": "locked-bucket", "retentionPolicy": {"retentionPeriod": "3600"}}
    session.ask("POST", "/storage/v1/b?project=sim-project", bucket)
    session.ask("POST", "/storage/v1/b/locked-bucket/lockRetentionPolicy?ifMetagenerationMatch=1", {})
    session.environ["TPUCTL_STORE"] = f"gs://locked-bucket/{PREFIX}"
    [mends] = [fix for _, what, fix in about_store(session, status=1) if "keeps every object" in what]
    assert "a bucket without a locked policy" in (mends or "")


@pytest.mark.parametrize(
    "rule",
    [
        {"action": {"type": "Delete"}, "condition": {"age": 30, "isLive": False}},
        {"action": {"type": "Delete"}, "condition": {"numNewerVersions": 3}},
        {"action": {"type": "Delete"}, "condition": {"age": 30, "matchesPrefix": ["checkpoints/"]}},
        {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 1}},
        {"action": {"type": "SetStorageClass", "storageClass": "NEARLINE"}, "condition": {"age": 1}},
    ],
)
def test_a_lifecycle_rule_that_leaves_records_alone(session: Session, rule: dict[str, Any]) -> None:
    set_up_bucket(session, {"lifecycle": {"rule": [rule]}})
    assert about_store(session, status=0) == []


def test_a_retention_policy_really_keeps_records_from_being_written_over(session: Session) -> None:
    set_up_bucket(session, {"retentionPolicy": {"retentionPeriod": "3600"}})
    session.type("pause", "--reason", "one")
    refused = session.type("resume", status=4)
    assert "retention policy" in refused.stderr
    assert "--clear-retention-period" in refused.stderr
    set_up_bucket(session, {"retentionPolicy": None})
    session.type("resume")


@pytest.mark.parametrize(
    ("identity", "says", "mends"),
    [
        ({"schema": 9, "identity": "s1"}, "this tpuctl is old", "pip install --upgrade"),
        ({"schema": 0, "identity": "s1"}, "old schema 0", "on every machine"),
        ({"schema": 1, "identity": "s1", "project": "theirs"}, "store of project theirs", "--project theirs"),
        ({"what": "is this"}, "damaged", "--all-versions"),
    ],
)
def test_a_store_of_another_kind(session: Session, identity: dict[str, Any], says: str, mends: str) -> None:
    write_identity(session, identity)
    _, what, fix = the_finding(session, status=0 if "old schema" in says else 1)
    assert says in what
    assert mends in fix


def test_no_store_where_one_should_be(session: Session) -> None:
    session.environ["TPUCTL_STORE"] = "gs://sim-bucket/elsewhere"
    _, what, fix = the_finding(session, status=1)
    assert what == "there is no store at gs://sim-bucket/elsewhere"
    assert "tpuctl config init --store gs://sim-bucket/elsewhere" in fix


def test_no_bucket_where_one_should_be(session: Session) -> None:
    session.environ["TPUCTL_STORE"] = "gs://no-such-bucket-here/x"
    found = about_store(session, status=1)
    assert any("gs://no-such-bucket-here does not exist" in what for _, what, _ in found)
    assert any("buckets create gs://no-such-bucket-here" in (fix or "") for _, _, fix in found)


def test_a_clock_that_is_off(session: Session) -> None:
    session.type("sim", "fault", "clock-off", "--set", "seconds=140")
    level, what, fix = the_finding(session, status=0)
    assert level == "warning"
    assert "its clock is 2 min ahead of this machine's" in what
    assert "set-ntp" in fix


def test_a_bucket_across_the_ocean(session: Session) -> None:
    session.environ["TPUCTL_ZONE"] = "europe-west4-a"
    _, what, fix = the_finding(session, status=0)
    assert "gs://sim-bucket is in us, far from europe-west4-a" in what
    assert "--location=europe-west4" in fix
