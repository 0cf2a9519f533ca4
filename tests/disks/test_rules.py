"""The table of disk rules: every row allows, warns or denies as it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tpuctl.disks.plan import STEPS, Seen, Step, fs_label, owner_labels, see
from tpuctl.disks.rules import DiskRules, DiskTarget, Policy, RuleFinding, refuse, warnings
from tpuctl.errors import UsageError
from tpuctl.model.disks import DataDisk, DiskInfo, DiskMode, DiskRecord, DiskRequest
from tpuctl.model.shipped_files import load_disk_rules

TABLE = load_disk_rules()
RULES = DiskRules(TABLE)
RO, RW = DiskMode.READ_ONLY, DiskMode.READ_WRITE


def a_disk(**changes: Any) -> DiskInfo:
    values: dict[str, Any] = {"name": "d", "zone": "z", "uid": "1", "type": "pd-balanced", "size_gib": 100}
    return DiskInfo(**{**values, "status": "READY", **changes})


def a_place(**changes: Any) -> DiskTarget:
    return DiskTarget(**{"node": "n", "zone": "z", "generation": "v4", "hosts": 1, **changes})


def said(findings: Any) -> dict[str, str]:
    return {each.rule: str(each.policy) for each in findings}


SHARED_ML = {"type": "hyperdisk-ml", "access_mode": "READ_ONLY_MANY"}
CASES: list[tuple[str, dict[str, Any], DiskMode, dict[str, Any], dict[str, str]]] = [
    ("a writer on one host", {}, RW, {}, {}),
    ("readers on a slice", {}, RO, {"hosts": 4}, {}),
    ("type denied", {"type": "pd-standard"}, RO, {"generation": "v5e"}, {"type": "deny"}),
    ("type of v6e", {}, RW, {"generation": "v6e"}, {"type": "deny"}),
    ("type untested", {"type": "pd-extreme"}, RW, {}, {"type-untested": "warn"}),
    ("a generation that nobody knows", {"type": "pd-extreme"}, RW, {"generation": "v9"}, {}),
    ("zone", {"zone": "y"}, RW, {}, {"zone": "deny"}),
    ("in use by a reader", {"users": ("other",)}, RW, {}, {"one-writer": "deny"}),
    ("shared with readers", {"users": ("other",)}, RO, {}, {}),
    ("here already", {"users": ("n",)}, RW, {"disks": (DataDisk("z", "d", RW),)}, {}),
    (
        "here in another mode",
        {"users": ("n",)},
        RO,
        {"disks": (DataDisk("z", "d", RW),)},
        {"both-modes": "deny"},
    ),
    (
        "many readers that have it already",
        {"users": tuple("abcdefgh")},
        RO,
        {"hosts": 8, "disks": (DataDisk("z", "d", RO),)},
        {},
    ),
    ("a writer on a slice", {}, RW, {"hosts": 2}, {"pod-read-only": "deny"}),
    (
        "balanced read-only",
        {"type": "hyperdisk-balanced"},
        RO,
        {"generation": "v6e"},
        {"read-only-type": "deny"},
    ),
    ("ml before its birth", {"type": "hyperdisk-ml"}, RO, {"generation": "v6e"}, {"access-mode": "deny"}),
    ("ml shared", {"type": "hyperdisk-ml", "access_mode": "READ_ONLY_MANY"}, RO, {"generation": "v6e"}, {}),
    (
        "ml again to write",
        {"type": "hyperdisk-ml", "access_mode": "READ_ONLY_MANY"},
        RW,
        {"generation": "v6e"},
        {"access-mode": "deny"},
    ),
    ("ten readers", {}, RO, {"hosts": 10}, {}),
    ("eleven readers", {}, RO, {"hosts": 11}, {"readers": "warn"}),
    (
        "ml with enough for its readers",
        {**SHARED_ML, "throughput_mib_s": 6400, "users": tuple("abcd")},
        RO,
        {"generation": "v6e", "hosts": 60},
        {},
    ),
    (
        "ml with too little for those that come back, too",
        {**SHARED_ML, "throughput_mib_s": 6400},
        RO,
        {"generation": "v6e", "hosts": 60, "others": 5},
        {"readers-throughput": "deny"},
    ),
    ("ml of few readers", {**SHARED_ML, "throughput_mib_s": 400}, RO, {"generation": "v6e", "hosts": 20}, {}),
    ("not ready", {"status": "RESTORING"}, RO, {}, {"not-ready": "deny"}),
    ("127 disks", {}, RO, {"disks": tuple(DataDisk("z", f"d{n}", RO) for n in range(127))}, {"disks": "deny"}),
]


@pytest.mark.parametrize(
    ("disk", "mode", "place", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_attaching_is_judged_as_the_table_says(disk: Any, mode: DiskMode, place: Any, wanted: Any) -> None:
    assert said(RULES.check_attach(a_disk(**disk), mode, a_place(**place))) == wanted


@pytest.mark.parametrize(
    ("kind", "size", "throughput", "wanted"),
    [
        ("pd-balanced", 100, None, {}),
        ("pd-balanced", 5, None, {"size": "deny"}),
        ("hyperdisk-ml", 100_000, None, {"size": "deny"}),
        ("pd-none", 100, None, {"type": "deny"}),
        ("pd-balanced", 100, 500, {"throughput": "deny"}),
        ("hyperdisk-ml", 100, 300, {"throughput": "deny"}),
        ("hyperdisk-ml", 100, 400, {}),
    ],
)
def test_new_disks_are_judged_as_the_table_says(kind: str, size: int, throughput: Any, wanted: Any) -> None:
    assert said(RULES.check_new(kind, size, throughput)) == wanted


Judge = Callable[[DiskRules], Sequence[RuleFinding]]


def attaching(mode: DiskMode, disk: dict[str, Any] | None = None, **place: Any) -> Judge:
    return lambda rules: rules.check_attach(a_disk(**(disk or {})), mode, a_place(**place))


def making(kind: str, size: int, throughput: int | None = None) -> Judge:
    return lambda rules: rules.check_new(kind, size, throughput)


def restoring(minutes: int, price: float | None = 1.0) -> Judge:
    return lambda rules: rules.check_restore("d", "z", minutes, price)


def with_disks(count: int) -> tuple[DataDisk, ...]:
    return tuple(DataDisk("z", f"d{n}", RO) for n in range(count))


MET: dict[str, tuple[Judge, Judge]] = {
    "type": (
        attaching(RO, {"type": "pd-standard"}, generation="v5e"),
        attaching(RO, {"type": "pd-standard"}),
    ),
    "type-untested": (attaching(RW, {"type": "pd-extreme"}), attaching(RW, {"type": "pd-ssd"})),
    "zone": (attaching(RW, {"zone": "y"}), attaching(RW, {"zone": "y"}, zone="y")),
    "one-writer": (attaching(RW, {"users": ("other",)}), attaching(RO, {"users": ("other",)})),
    "both-modes": (
        attaching(RO, {"users": ("n",)}, disks=(DataDisk("z", "d", RW),)),
        attaching(RW, {"users": ("n",)}, disks=(DataDisk("z", "d", RW),)),
    ),
    "pod-read-only": (attaching(RW, hosts=2), attaching(RO, hosts=2)),
    "read-only-type": (
        attaching(RO, {"type": "hyperdisk-balanced"}, generation="v6e"),
        attaching(RW, {"type": "hyperdisk-balanced"}, generation="v6e"),
    ),
    "access-mode": (attaching(RW, SHARED_ML, generation="v6e"), attaching(RO, SHARED_ML, generation="v6e")),
    "readers": (attaching(RO, hosts=11), attaching(RO, hosts=10)),
    "readers-throughput": (
        attaching(RO, {**SHARED_ML, "throughput_mib_s": 2000}, generation="v6e", hosts=21),
        attaching(RO, {**SHARED_ML, "throughput_mib_s": 2100}, generation="v6e", hosts=21),
    ),
    "disks": (attaching(RO, disks=with_disks(127)), attaching(RO, disks=with_disks(126))),
    "not-ready": (attaching(RO, {"status": "RESTORING"}), attaching(RO)),
    "size": (making("pd-balanced", 9), making("pd-balanced", 10)),
    "throughput": (making("hyperdisk-ml", 100, 399), making("hyperdisk-ml", 100, 400)),
    "restore-time": (restoring(61), restoring(60)),
    "restore-cost": (restoring(1, 150.5), restoring(1, 150.0)),
}
"""Rule of the table → a case that meets it and one that just does not."""


def table_with(rule: str, policy: str) -> dict[str, Any]:
    return {**TABLE, "rules": {**TABLE["rules"], rule: {**TABLE["rules"][rule], "policy": policy}}}


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("rule", list(TABLE["rules"]))
def test_every_rule_allows_warns_and_denies_as_its_row_says(rule: str, policy: Policy) -> None:
    rules = DiskRules(table_with(rule, str(policy)))
    met, spared = MET[rule]
    assert said(spared(rules)) == {}
    findings = met(rules)
    assert said(findings) == {rule: str(policy)}
    assert bool(warnings(findings)) == (policy is Policy.WARN)
    if policy is not Policy.DENY:
        refuse(findings)
        return
    with pytest.raises(UsageError) as caught:
        refuse(findings)
    if TABLE["rules"][rule].get("firm"):
        assert "--allow" not in str(caught.value.hint)
        with pytest.raises(UsageError, match=f"{rule} cannot be allowed"):
            DiskRules(TABLE, [rule])
        return
    assert str(caught.value.hint).endswith(f"or, at your own risk, --allow {rule}")
    with pytest.raises(UsageError) as caught:
        refuse(findings, "tpuctl disk attach d --to s")
    assert str(caught.value.hint).endswith(f"or, at your own risk, tpuctl disk attach d --to s --allow {rule}")
    assert caught.value.details == {"rule": rule}
    refuse(met(DiskRules(table_with(rule, "deny"), [rule])))


def test_every_rule_has_its_cases_and_its_source() -> None:
    assert set(MET) == set(TABLE["rules"])
    assert all(row["source"] and row["policy"] in list(Policy) for row in TABLE["rules"].values())


def test_every_type_of_every_generation_is_judged_as_its_row_says() -> None:
    for generation, row in TABLE["generations"].items():
        assert set(row["types"]) <= set(TABLE["types"])
        for kind in TABLE["types"]:
            found = [each.policy for each in RULES.check_type(kind, generation)]
            wanted = row["types"].get(kind, "deny")
            assert found == ([] if wanted == "allow" else [Policy(wanted)]), (generation, kind)


def test_a_clone_without_a_known_price_is_not_restored_by_itself() -> None:
    assert said(restoring(1, None)(RULES)) == {"restore-cost": "deny"}
    assert (RULES.restore_minutes(4), RULES.restore_minutes(10_000)) == (1, 1001)


def test_a_user_may_take_a_refusal_for_a_warning() -> None:
    bold = DiskRules(TABLE, ["pod-read-only"])
    findings = bold.check_attach(a_disk(), RW, a_place(hosts=2))
    assert said(findings) == {"pod-read-only": "warn"}
    refuse(findings)
    with pytest.raises(UsageError, match="one host alone can write") as caught:
        refuse(RULES.check_attach(a_disk(), RW, a_place(hosts=2)))
    assert "--allow pod-read-only" in str(caught.value.hint)
    with pytest.raises(UsageError, match="no rule bogus"):
        DiskRules(TABLE, ["bogus"])


@pytest.mark.parametrize(
    ("kind", "generation", "wanted"),
    [
        ("pd-balanced", "v4", "pd-balanced"),
        ("pd-standard", "v5e", "pd-balanced"),
        ("hyperdisk-balanced", "v6e", "hyperdisk-ml"),
        ("hyperdisk-ml", "v5p", "hyperdisk-ml"),
        ("hyperdisk-ml", "v4", "pd-balanced"),
        ("pd-ssd", "v9", "pd-ssd"),
    ],
)
def test_copies_for_readers_have_a_type_that_they_can_share(kind: str, generation: str, wanted: str) -> None:
    assert RULES.shared_type(kind, generation) == wanted


def test_throughput_is_the_least_that_serves_the_readers() -> None:
    assert RULES.throughput_for("pd-balanced", 100, 32) is None
    assert RULES.throughput_for("hyperdisk-ml", 1024, 4) == 400
    assert RULES.throughput_for("hyperdisk-ml", 1024, 32) == 3200
    assert RULES.throughput_for("hyperdisk-ml", 10_000, 4) == 1200


def test_the_seventh_copy_in_an_hour_waits() -> None:
    times = [1000.0 + 60 * n for n in range(6)]
    assert RULES.copy_wait_s(times[:5], 1400.0) == 0
    assert RULES.copy_wait_s(times, 1400.0) == 3200
    assert RULES.copy_wait_s(times, 4601.0) == 0


def test_every_state_of_a_disk_has_a_next_step_and_no_foreign_one_is_touched() -> None:
    assert set(STEPS) == {(wanted, seen) for wanted in (True, False) for seen in Seen}
    for (wanted, seen), step in STEPS.items():
        assert not (step is Step.CREATE and (seen is not Seen.ABSENT or not wanted))
        assert not (step is Step.DELETE and (seen not in {Seen.READY, Seen.BROKEN} or wanted))
        assert not (seen is Seen.FOREIGN and step in {Step.CREATE, Step.DELETE})


def test_a_disk_is_ours_by_its_labels_alone() -> None:
    request = DiskRequest("d", "z", "pd-balanced", 100, {})
    record = DiskRecord("d", request, "ada", 1.0, "d")
    labels = owner_labels("d", 0, "st", "ada")
    assert see(record, None, "st") is Seen.ABSENT
    assert see(record, a_disk(labels=labels), "st") is Seen.READY
    assert see(record, a_disk(labels=labels, status="RESTORING"), "st") is Seen.COMING
    assert see(record, a_disk(labels=labels, status="SOMETHING_NEW"), "st") is Seen.UNKNOWN
    for key in labels:
        if key != "tpuctl-user":
            assert see(record, a_disk(labels={**labels, key: "x"}), "st") is Seen.FOREIGN


def test_labels_of_file_systems_fit_and_differ() -> None:
    assert fs_label("data") == "data"
    long = [f"a-very-long-name-of-a-disk-{n}" for n in range(3)]
    assert {len(fs_label(each)) <= 16 for each in long} == {True}
    assert len({fs_label(each) for each in long}) == 3
