"""`tpuctl quota`, and the check of side quotas before `up`, through the real command line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.session import Session, open_session

ADDRESSES = "IN_USE_ADDRESSES/us-central2"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with open_session("--instant", "--quota", f"{ADDRESSES}=3", "--quota", "us-central2-b/v4=32") as session:
        session.type("grant", "add", "32", "spot", "v4", "us-central2-b")
        session.type("up", "v4-16", "big", "--spot")
        yield session


@pytest.fixture(autouse=True)
def no_faults(session: Session) -> Iterator[None]:
    yield
    session.type("sim", "fault", "--clear")


def creates(session: Session) -> list[str]:
    ended = (".create", ".insert")
    return [each["resource"] for each in session.sim_journal() if each["method"].endswith(ended)]


def test_limits_use_holders_grants_and_cost_are_shown(session: Session) -> None:
    found = session.json("quota")
    spot = next(row for row in found["tpu"] if row["tier"] == "spot")
    assert (spot["place"], spot["limit"], spot["used"], spot["unit"]) == (
        "us-central2-b",
        64,
        16,
        "tensorcores",
    )
    side = {row["metric"]: row for row in found["side"]}
    assert (side["IN_USE_ADDRESSES"]["used"], side["IN_USE_ADDRESSES"]["hosts"]) == (2, 1)
    assert [(row["name"], row["chips"], row["dead"]) for row in found["holders"]] == [("big-1", 8, False)]
    assert [(row["live"], row["chips"]) for row in found["grants"]] == [(8, 32)]
    assert found["cost_usd_per_hour"] == pytest.approx(7.73)
    assert "2026-" in found["prices"]
    assert found["unread"] == []


def test_the_tables_fit_eighty_columns(session: Session) -> None:
    lines = session.type("quota").stdout.splitlines()
    assert any("IN_USE_ADDRESSES" in line and "1 more host with" in line for line in lines)
    assert any("about $7.73 per hour (list prices of 2026-11-21 in USD" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_up_is_refused_before_the_create_with_both_ways_out(session: Session) -> None:
    before = creates(session)
    done = session.type("up", "v4-16", "more", "--spot", status=7)
    assert "IN_USE_ADDRESSES in us-central2: 2 needed, 1 free" in done.stderr
    assert "gcloud beta quotas preferences create" in done.stderr
    assert "--internal-ips" in done.stderr
    assert session.type("up", "v4-16", "more", "--spot", "--dry-run", status=7).stdout == ""
    assert creates(session) == before
    assert session.type("status", "more", status=5)


def test_of_several_zones_one_with_room_is_enough(session: Session) -> None:
    words = ("up", "v5litepod-16", "--spot", "--pay", "--dry-run")
    words = (*words, "--zone", "us-central1-a", "--zone", "europe-west4-b")
    session.type("sim", "quota", "IN_USE_ADDRESSES/us-central1=1")
    try:
        done = session.type(*words)
        assert "perhaps too little of IN_USE_ADDRESSES in us-central1" in done.stderr
        assert done.stderr.count('before gcloud: `eval "$(tpuctl sim env)"`') == 1
        session.type("sim", "quota", "IN_USE_ADDRESSES/europe-west4=0")
        done = session.type(*words, status=7)
        assert "IN_USE_ADDRESSES in us-central1" in done.stderr
        assert "IN_USE_ADDRESSES in europe-west4" in done.stderr
    finally:
        session.type("sim", "quota", "IN_USE_ADDRESSES/us-central1=100", "IN_USE_ADDRESSES/europe-west4=100")


def test_chips_of_compute_engine_are_another_pool_and_refused_before_anything_is_made(session: Session) -> None:
    before = creates(session)
    pool = ("TPUS_PER_TPU_FAMILY/us-east5/CT6E", "PREEMPTIBLE_TPU_V6E/us-east5-a")
    session.type("sim", "quota", f"{pool[0]}=0", f"{pool[1]}=8")
    words = ("up", "v6e-16", "machines", "--api", "compute", "--pay", "--zone", "us-east5-a")
    try:
        rows = [
            row for row in session.json("quota", "--zone", "us-east5-a")["tpu"] if row["generation"] == "v6e"
        ]
        shown = {(row["api"], row["tier"], row["place"], row["limit"]) for row in rows}
        assert {("compute", "on-demand", "us-east5", 0), ("compute", "spot", "us-east5-a", 8)} <= shown
        assert {row["unit"] for row in rows} == {"chips"}
        spot = session.type(*words, "--spot", status=7)
        dry = session.type(*words, "--on-demand", "--dry-run", status=7)
    finally:
        session.type("sim", "quota", f"{pool[0]}=1000", f"{pool[1]}=1000")
    id = "PREEMPTIBLE-TPU-V6E-per-project-zone"
    assert f"preemptible v6e in us-east5-a of Compute Engine ({id}): 16 chips needed, 8 free" in spot.stderr
    assert "quota of the Cloud TPU API does not count there" in spot.stderr
    assert f"--service=compute.googleapis.com --quota-id={id} --preferred-value=16" in spot.stderr
    assert "v6e in us-east5 of Compute Engine" in dry.stderr
    assert "--dimensions=region=us-east5,tpu_family=CT6E" in dry.stderr
    assert creates(session) == before


def test_slices_of_a_file_are_added_up_each_by_its_own_type(session: Session) -> None:
    before = creates(session)
    sizes = {"one": "v4-8", "two": "v4-16", "four": "v4-32"}
    slices = {name: {"accelerator": kind, "pay": True, "internal_ips": True} for name, kind in sizes.items()}
    settings = {"tier": "spot", "zone": "us-central2-b"}
    whole = {"settings": settings, "fleet": {"name": "lab", "slices": slices}}
    (session.work / "fleet.yaml").write_text(json.dumps(whole))
    done = session.type("apply", "-f", "fleet.yaml", "--yes", status=7)
    assert "what is new in us-central2-b needs more than the quota" in done.stderr
    assert "56 tensorcores needed, 48 free" in done.stderr
    assert creates(session) == before


def test_an_up_of_what_is_there_already_asks_for_no_more_room(session: Session) -> None:
    assert "big is ready" in session.type("up", "v4-16", "big", "--spot").stderr


def test_a_quota_that_is_not_readable_is_said_and_blocks_nothing(session: Session) -> None:
    session.type("sim", "fault", "no-permission", "--set", "name=compute.*")
    session.type("sim", "fault", "api-off", "--set", "name=cloudquotas.googleapis.com")
    found = session.json("quota")
    assert found["tpu"] == []
    assert found["side"] == []
    unread = {row["what"]: row for row in found["unread"]}
    of_quotas = {"TPU quotas", "quotas of the project", "quotas of region us-central2"}
    of_machines = {"TPU quotas of Compute Engine", "TPUs of Compute Engine"}
    assert set(unread) == {*of_quotas, *of_machines, "snapshots"}
    assert (
        unread["TPU quotas"]["fix"]
        == "gcloud services enable cloudquotas.googleapis.com --project=415104041262"
    )
    assert "compute.regions.get" in unread["quotas of region us-central2"]["why"]
    done = session.type("up", "v4-8", "small", "--spot")
    assert "the quotas of region us-central2 could not be read" in done.stderr
    session.type("down", "small", "--yes")


def test_a_dead_request_is_marked_with_what_collects_it(session: Session) -> None:
    session.type("up", "v4-8", "dead", "--spot")
    session.type("sim", "preempt", "dead-1")
    done = session.type("quota")
    assert "dead-1 in us-central2-b is SUSPENDED and still holds quota: tpuctl watch once" in done.stderr
    row = next(row for row in session.json("quota")["holders"] if row["name"] == "dead-1")
    assert (row["dead"], row["chips"], row["price"]) == (True, 4, None)
    session.type("down", "dead", "--yes")


def test_zones_that_were_not_reached_leave_use_unknown(session: Session) -> None:
    session.type("sim", "fault", "--set", "kind=unreachable", "--set", "zone=us-east1-d", "--set", "times=0")
    found = session.json("quota")
    assert {row["used"] for row in found["tpu"]} == {None}
    assert [row["live"] for row in found["grants"]] == [None]
    assert any("us-east1-d" in row["why"] for row in found["unread"])


def test_small_slices_of_v5e_have_a_quota_of_their_own(session: Session) -> None:
    zone = "us-west4-a"
    session.type("sim", "quota", f"{zone}/v5e:serving=4", f"{zone}/v5e=0")
    try:
        refused = session.type("up", "v5litepod-8", "eight", "--spot", "--pay", "--zone", zone, status=7)
        assert f"of preemptible serving v5e in {zone}: 8 chips needed, 4 free" in refused.stderr
        pod = session.type("up", "v5litepod-16", "pod", "--spot", "--pay", "--zone", zone, status=7)
        assert f"of preemptible v5e in {zone}: 16 chips needed, 0 free" in pod.stderr
        session.type("up", "v5litepod-4", "four", "--spot", "--pay", "--zone", zone)
        more = session.type("up", "v5litepod-1", "more", "--spot", "--pay", "--zone", zone, status=7)
        assert "1 chips needed, 0 free (4 of 4 in use)" in more.stderr
    finally:
        session.type("down", "four", "--yes", status=None)
        session.type("sim", "quota", f"{zone}/v5e:serving=100000", f"{zone}/v5e=100000")
