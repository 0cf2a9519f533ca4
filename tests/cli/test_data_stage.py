"""`tpuctl data stage` on two hosts: the real client of the hub, a small hub and the simulator's bucket."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.hosts import wait_until
from tests.support.hub import Hub, serving_hub
from tests.support.require import require_index
from tests.support.session import Session, open_session

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]

INSTALL_S = 400.0
SOURCE, PLACE = "hf://org/name@main", "gs://sim-bucket/models/name"


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with serving_hub() as made:
        model = random.Random(1).randbytes(30 << 20)
        made.add("models/org/name", {"config.json": b"{}", "model.bin": model})
        made.add("models/org/gated", {"a.json": b"{}"}, token="open-sesame", gated=True)
        yield made


@pytest.fixture(scope="module")
def session(hub: Hub) -> Iterator[Session]:
    require_index()
    with open_session() as opened:
        opened.type("up", "v4-16", "big", "--spot", "--pay")
        # The environment, before a limit of time matters to a test.
        hub.add("models/org/first", {"a.json": b"{}"})
        words = ("data", "stage", "hf://org/first@main", "gs://sim-bucket/staged/first", "--endpoint", hub.url)
        opened.type(*words, within_s=INSTALL_S)
        yield opened


def stage(session: Session, hub: Hub, source: str, place: str, *words: str, status: int = 0) -> str:
    done = session.type("data", "stage", source, place, "--endpoint", hub.url, *words, status=status)
    return " ".join((done.stdout + done.stderr).split())


def test_killed_and_typed_again_it_follows_the_run_that_went_on_and_ends_with_a_receipt(
    session: Session, hub: Hub
) -> None:
    hub.cuts = [(10 << 20) + 100] * 16  # within the file, each with a second of the client before it goes on
    client = session.start("data", "stage", SOURCE, PLACE, "--endpoint", hub.url)

    def running() -> list[dict[str, Any]]:
        return [row for row in session.json("runs") if row["state"] == "running"]

    wait_until(lambda: hub.ranges and running())  # a host may be at work before its client wrote that down
    client.kill()
    client.communicate(timeout=30)
    [run] = running()
    assert "is not complete" in session.type("data", "verify", PLACE, status=3).stderr
    hub.cuts.clear()

    said = stage(session, hub, SOURCE, PLACE)
    assert f"{PLACE} has {SOURCE}: commit {hub.repos['models/org/name'].refs['main'][:12]}, 2 files" in said
    assert session.json("runs")[0]["id"] == run["id"]
    again = session.json("data", "stage", SOURCE, PLACE, "--endpoint", hub.url)
    assert again["receipt"] == session.json("data", "receipt", PLACE)
    assert session.json("runs")[0]["id"] == run["id"]
    (session.work / "main.py").write_text("print('read')\n")
    session.type("run", "--on", "big", "--no-checkpoint", "--data", PLACE, "main.py")
    assert "2 objects" in session.type("data", "verify", PLACE).stderr


def test_a_token_comes_as_a_secret_and_what_is_refused_says_what_to_type(session: Session, hub: Hub) -> None:
    gated, place = "hf://org/gated@main", "gs://sim-bucket/models/gated"
    said = stage(session, hub, gated, place, status=4)
    assert "hf://org/gated is gated, and this account may not read it" in said
    assert "hint: accept its terms at" in said
    session.environ["MY_TOKEN"] = "open-sesame"
    words = ("data", "stage", gated, place, "--endpoint", hub.url, "--token", "env:MY_TOKEN")
    assert session.json(*words)["receipt"]["objects"] == 2
    newest = session.json("runs")[0]["id"]
    shown = [session.type(*words).stdout for words in (("manifest", "show", newest), ("logs", newest))]
    assert "open-sesame" not in json.dumps(shown)


def test_bad_input_starts_no_run(session: Session, hub: Hub) -> None:
    before = len(session.json("runs"))
    assert "names no revision" in stage(session, hub, "hf://org/name", PLACE, status=2)
    assert "is no prefix in a bucket" in stage(session, hub, SOURCE, "models/name", status=2)
    assert "bucket gs://no-such-bucket does not exist" in stage(
        session, hub, SOURCE, "gs://no-such-bucket/a", status=5
    )
    assert "has something else" in stage(session, hub, SOURCE, "gs://sim-bucket/staged", status=6)
    other = stage(session, hub, "hf://org/name@v2", "gs://sim-bucket/staged/first", status=6)
    assert "has files of hf://org/first@main" in other
    assert "no slice called none" in stage(session, hub, SOURCE, "gs://sim-bucket/b", "--on", "none", status=5)
    said = stage(session, hub, SOURCE, "gs://sim-bucket/b", "--token", "hf_abcdefgh", status=2)
    assert "--token must say where the token is" in said
    assert "hf_abcdefgh" not in said
    dry = stage(session, hub, SOURCE, "gs://sim-bucket/b", "--dry-run")
    assert f"would bring {SOURCE} to gs://sim-bucket/b, by worker 0 of big" in dry
    told = json.loads(stage(session, hub, SOURCE, "gs://sim-bucket/b", "--dry-run", "--json"))
    assert told == {"dry_run": True, "source": SOURCE, "place": "gs://sim-bucket/b", "slice": "big"}
    assert len(session.json("runs")) == before


def test_a_bucket_that_refuses_the_hosts_account_is_named_with_the_role_to_give(
    session: Session, hub: Hub
) -> None:
    session.type("sim", "fault", "no-permission", "--set", "name=storage.objects.create")
    said = stage(session, hub, SOURCE, "gs://sim-bucket/closed", status=4)
    session.type("sim", "fault", "--clear")
    assert "gs://sim-bucket --member=serviceAccount:" in said
    assert said.endswith("--role=roles/storage.objectUser")
