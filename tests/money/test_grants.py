from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from tpuctl.model.cloud import Tier
from tpuctl.model.shipped_files import load_accelerators
from tpuctl.money.grants import Grant, check_coverage
from tpuctl.money.letters import GrantLine, parse_trc_letter, to_grants, unread_lines

LETTER = """\
Hi there,

> Your project number 123456 has access to the following:
>
>   - 64 spot Cloud TPU v6e chips in zone us-east1-d
>   * 32 on-demand Cloud TPU v4 chips in zone us-central2-b
>   32 spot Cloud TPU v4 chips
>   in zone us-central2-b.
1,024 preemptible Cloud TPU v5e chips in zone europe-west4-b

These quotas will be available until March 31st, 2027. Please only use TPUs in the zones listed.
"""
CATALOG = load_accelerators()
NOON = datetime(2027, 3, 31, 12, tzinfo=UTC).timestamp()
DAY = 86400


def test_every_line_of_a_letter_is_read():
    assert parse_trc_letter(LETTER) == (
        GrantLine(64, Tier.SPOT, "v6e", "us-east1-d", "2027-03-31"),
        GrantLine(32, Tier.ON_DEMAND, "v4", "us-central2-b", "2027-03-31"),
        GrantLine(32, Tier.SPOT, "v4", "us-central2-b", "2027-03-31"),
        GrantLine(1024, Tier.PREEMPTIBLE, "v5e", "europe-west4-b", "2027-03-31"),
    )


@pytest.mark.parametrize(
    "text", ["", "hello", "64 spot Cloud TPU v6e chips", "spot Cloud TPU v6e chips in zone us-east1-d"]
)
def test_text_without_a_grant_has_none(text):
    assert parse_trc_letter(text) == ()


@pytest.mark.parametrize(
    ("sentence", "ends"),
    [
        ("It ends on 2027-01-15.", "2027-01-15"),
        ("It expires 15 January 2027.", "2027-01-15"),
        ("Access is valid to Jan 15, 2027.", "2027-01-15"),
        ("Sent on 2027-01-15.", None),
        ("It ends soon. Written on 2027-01-15.", None),
        ("It ends on 2027-13-45.", None),
    ],
)
def test_an_end_date_comes_from_a_sentence_about_an_end(sentence, ends):
    (line,) = parse_trc_letter(f"64 spot Cloud TPU v6e chips in zone us-east1-d\n{sentence}")
    assert line.ends == ends


@pytest.mark.parametrize(
    ("sentence", "ends"),
    [
        ("You may use these for 30 days.", "2027-01-30"),
        ("Free of charge for a period of 90 days.", "2027-03-31"),
        ("for 30\n> days", "2027-01-30"),
        ("Yours for 30 days, until February 2, 2027.", "2027-02-02"),
        ("for 0 days", None),
        ("Answer within 30 days.", None),
    ],
)
def test_a_number_of_days_is_counted_from_the_import(sentence, ends):
    text = f"64 spot Cloud TPU v6e chips in zone us-east1-d\n{sentence}"
    (line,) = parse_trc_letter(text, today=date(2027, 1, 1))
    assert line.ends == ends


def coverage(name, zone, tier, used=0, now=NOON):
    return check_coverage(to_grants(parse_trc_letter(LETTER)), CATALOG.get(name), zone, tier, used, now)


def test_a_grant_covers_its_zone_tier_and_chips_until_its_last_day():
    found = coverage("v4-64", "us-central2-b", Tier.SPOT)
    assert found.covered
    assert found.until == date(2027, 3, 31)


@pytest.mark.parametrize(
    ("name", "zone", "tier", "used", "reason"),
    [
        ("v4-128", "us-central2-b", Tier.SPOT, 0, "32 chips; v4-128 takes 64"),
        ("v4-64", "us-central2-b", Tier.SPOT, 1, "1 in use"),
        ("v4-8", "us-central2-b", Tier.RESERVED, 0, "no grant"),
        ("v6e-8", "us-east1-d", Tier.ON_DEMAND, 0, "no grant"),
        ("v6e-8", "europe-west4-a", Tier.SPOT, 0, "no grant"),
        ("v4-8", "us-east1-d", Tier.SPOT, 0, "no grant"),
    ],
)
def test_what_a_grant_does_not_cover(name, zone, tier, used, reason):
    found = coverage(name, zone, tier, used)
    assert not found.covered
    assert reason in found.reason


def test_an_on_demand_grant_does_not_cover_spot_nor_the_other_way_round():
    on_demand = [Grant("us-central2-b", Tier.ON_DEMAND, "v4", 32)]
    spot = [Grant("us-central2-b", Tier.SPOT, "v4", 32)]
    small = CATALOG.get("v4-8")
    assert not check_coverage(on_demand, small, "us-central2-b", Tier.SPOT, 0, NOON).covered
    assert not check_coverage(spot, small, "us-central2-b", Tier.ON_DEMAND, 0, NOON).covered
    assert check_coverage(spot, small, "us-central2-b", Tier.PREEMPTIBLE, 0, NOON).covered


def test_a_grant_ends():
    found = coverage("v4-8", "us-central2-b", Tier.SPOT, now=NOON + DAY)
    assert not found.covered
    assert "ended on 2027-03-31" in found.reason


def test_a_grant_without_an_end_covers_without_a_date():
    grants = [Grant("us-central2-b", Tier.SPOT, "v4", 32)]
    found = check_coverage(grants, CATALOG.get("v4-8"), "us-central2-b", Tier.SPOT, 0, NOON)
    assert found.covered
    assert found.until is None


def test_each_zone_tier_and_generation_has_one_key():
    grants = to_grants(parse_trc_letter(LETTER))
    assert len({grant.name for grant in grants}) == 4


OLD_LETTER = """\
* 5 on-demand Cloud TPU v3-8 device(s) in zone europe-west4-a
* 100 preemptible Cloud TPU v2-8 devices in zone us-central1-f
* 8 on-demand Cloud TPU v9-8 device(s) in zone us-central1-f
* 64 spot TPU v6e cores in zone us-east1-d
"""


def test_letters_that_count_devices_are_read_as_chips():
    assert parse_trc_letter(OLD_LETTER, CATALOG.types) == (
        GrantLine(20, Tier.ON_DEMAND, "v3", "europe-west4-a"),
        GrantLine(400, Tier.PREEMPTIBLE, "v2", "us-central1-f"),
    )


def test_what_looks_like_a_grant_and_is_not_understood_is_said():
    assert unread_lines(OLD_LETTER, CATALOG.types) == (
        "8 on-demand Cloud TPU v9-8 device(s) in zone us-central1-f",
        "64 spot TPU v6e cores in zone us-east1-d",
    )
    assert unread_lines(LETTER, CATALOG.types) == ()
