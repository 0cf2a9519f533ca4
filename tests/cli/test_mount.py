"""`tpuctl mount` as a new user meets it: obvious mistakes, and what is said before anything happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.oauth2.credentials import Credentials

from tests.support.session import Session, open_session
from tpuctl.cloud.storage import GoogleObjects
from tpuctl.model.facts import BucketSpec

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session() as made:
        made.type("up", "v4-8", "big", "--spot", "--pay", "--zone", "us-central2-b")
        yield made


def add(session: Session, *words: str, status: int = 0) -> str:
    done = session.type("mount", "add", *words, "--on", "big", status=status)
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("words", "status", "said", "hint"),
    [
        (("gs://nowhere-at-all:/mnt/n",), 5, "gs://nowhere-at-all does not exist", "--create"),
        (
            ("gs://my/bucket:/mnt/n",),
            2,
            "'my' is no name of a bucket; what is behind the slash is a folder",
            "gs://",
        ),
        (("my-bucket:/mnt/n",), 2, "is not gs://BUCKET[/DIR]:/PATH", "gs://my-bucket/data:/mnt/data"),
        (("gs://sim-bucket:/mnt/n", "--ttl", "soon"), 2, "'soon' is no number of seconds", "--ttl 60"),
        (("gs://sim-bucket:/mnt/n", "--cache-dir", "/c"), 2, "without a limit fills the disk", "--cache-size"),
        (("gs://sim-bucket:/mnt/n", "--flat"), 2, "a bucket that is there stays as it is", "--create --flat"),
        (("gs://sim-bucket:/etc/n",), 2, "/etc/n is no place for a mount", "/mnt/data"),
        (("gs://sim-bucket:/mnt/n", "--create"), 6, "gs://sim-bucket is there already", "leave out --create"),
    ],
)
def test_a_mistake_is_one_line_with_what_to_type_and_changes_nothing(
    session: Session, words: tuple[str, ...], status: int, said: str, hint: str
) -> None:
    before = session.sim_journal()
    text = add(session, *words, status=status)
    assert said in text
    assert hint in text.partition("hint: ")[2]
    assert session.json("mount", "ls") == []
    assert session.sim_journal() == before


def test_no_permission_names_the_role(session: Session) -> None:
    fault = ("kind=error", "method=storage.*", "code=7", "times=0", "message=Permission denied.")
    session.type("sim", "fault", *(word for field in fault for word in ("--set", field)))
    try:
        text = add(session, "gs://sim-bucket:/mnt/n", status=4)
    finally:
        session.type("sim", "fault", "--clear")
    assert "add-iam-policy-binding gs://sim-bucket" in text.partition("hint: ")[2]


def test_a_bucket_of_another_region_is_refused_with_its_price_unless_that_is_meant(session: Session) -> None:
    info = session.json("sim", "status")
    token = Path(info["token_file"]).read_text().strip()
    objects = GoogleObjects(info["project"], info["http"], Credentials(token=token))
    objects.create_bucket(BucketSpec("far-away", "europe-west4", {}))
    up = ("up", "v4-8", "other", "--spot", "--pay", "--zone", "us-central2-b", "--dry-run", "--mount")
    refused = " ".join(session.type(*up, "gs://far-away:/mnt/far", status=2).stderr.split())
    assert (
        "gs://far-away is in EUROPE-WEST4, the slice in us-central2: slow, and 20 USD or more per TB" in refused
    )
    assert "gs://far-away:/mnt/far:train,cross-region" in refused.partition("hint: ")[2]
    told = " ".join(session.type(*up, "gs://far-away:/mnt/far,cross-region").stderr.split())
    assert "away from us-central2: 20 USD or more per TB read" in told
    said = add(session, "gs://far-away:/mnt/far", "--cross-region", "--dry-run")
    assert "20 USD or more" in said
    assert "ttl 60 s. Once a writer has closed a file" in said


def test_what_would_be_made_is_said_and_not_made(session: Session) -> None:
    before = session.sim_journal()
    for profile, more in (("train", False), ("checkpoint", True)):
        text = add(session, f"gs://not-made-yet:/mnt/n:{profile}", "--create", "--dry-run")
        assert (
            "would make gs://not-made-yet in us-central2: uniform access, never public, no soft delete" in text
        )
        assert ("hierarchical namespace" in text) is more
    assert session.sim_journal() == before


def test_costs_need_no_cloud(session: Session) -> None:
    words = ("mount", "cost", "--hosts", "2", "--files", "1000", "--profile", "dataset", "--json")
    found = json.loads(session.type(*words).stdout)
    assert found["usd_month"] == pytest.approx(sum(row["usd_month"] for row in found["operations"]))
    assert {row["operations"] for row in found["operations"]} == {"A", "B"}
    refused = session.type("mount", "cost", "--hosts", "2", "--files", "1", "--place", "moon", status=2)
    assert "region, dual-region, multi-region" in refused.stderr
