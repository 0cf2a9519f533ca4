"""What the operations of a mount cost, for a ttl, hosts and files."""

from __future__ import annotations

import pytest

from tpuctl.model.shipped_files import load_mount_table, read_template
from tpuctl.mounts.bench import PROBE_EVERY_S, CostRow, MountUse, operation_costs, total_usd
from tpuctl.mounts.follow import parse_ref
from tpuctl.mounts.render import options_of
from tpuctl.mounts.rules import MountRules

RULES = MountRules(*load_mount_table())
USD = RULES.prices["operations"]["region"]


def rows(words: str, use: MountUse) -> dict[tuple[str, str], CostRow]:
    ref = parse_ref(RULES, f"gs://bucket:/mnt/b:{words}")
    return {
        (row.what, row.operations): row
        for row in operation_costs(options_of(RULES, ref, RULES.pinned), use, USD)
    }


@pytest.mark.parametrize(
    ("words", "passes", "first", "later"),
    [
        ("checkpoint", 10, 2000, 2000),
        ("train", 10, 2000, 2000),
        ("train", 10_000, 200 * 1440, 200 * 1440),
        ("train,ttl=3600", 100, 200 * 24, 200 * 24),
        ("train,ttl=forever", 100, 200, 0),
        ("dataset", 100, 200, 0),
    ],
)
def test_a_name_is_looked_up_as_often_as_it_is_opened_or_its_ttl_ends(
    words: str, passes: float, first: int, later: int
) -> None:
    found = rows(words, MountUse(hosts=2, files=100, passes=passes))
    for row in (found["look-ups of names", "B"], found["look-ups, of folders of that name", "A"]):
        assert (row.first_day, row.later_day) == (first, later)


def test_without_implicit_folders_look_ups_are_of_the_cheap_class() -> None:
    use = MountUse(hosts=2, files=100_000, passes=24)
    plain, implicit = (
        total_usd(list(rows(f"train,implicit-dirs={each}", use).values())) for each in ("false", "true")
    )
    assert implicit > 4 * plain


def test_a_file_cache_reads_each_file_once_and_one_listing_has_a_thousand_names() -> None:
    use = MountUse(hosts=4, files=2500, passes=24)
    cached, plain = rows("dataset", use), rows("train", use)
    assert (cached["reads", "B"].first_day, cached["reads", "B"].later_day) == (10_000, 0)
    assert plain["reads", "B"].later_day == 240_000
    assert plain["listings", "A"].later_day == 4 * 3 * 24
    assert (cached["listings", "A"].first_day, cached["listings", "A"].later_day) == (12, 0)


def test_dollars_are_those_of_the_list() -> None:
    row = rows("checkpoint", MountUse(hosts=1, files=1000, passes=1))["look-ups of names", "B"]
    assert row.usd_month == pytest.approx(30 * 0.0004)
    assert rows("checkpoint", MountUse(1, 1000, 1))["listings", "A"].usd_month == pytest.approx(
        30 * 0.005 / 1000
    )


def test_hosts_ask_as_often_as_is_counted() -> None:
    assert f"ASK_EVERY_S = {PROBE_EVERY_S:.1f}".encode() in read_template("mount_keeper.py")
